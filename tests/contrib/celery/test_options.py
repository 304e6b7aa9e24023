"""The options of apply_async and of tasks as those of jobs, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("celery")

import kombu
from celery import group, signals
from celery.app.routes import prepare
from celery.exceptions import Ignore, TaskRevokedError
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs import (
    EnqueueError,
    NotMigrated,
    PayloadError,
    UnknownJobType,
    UnknownQueue,
    registry,
)
from django_jobs.api import sql_defaults
from django_jobs.apps import seed
from django_jobs.contrib.celery.messages.options import queue_of
from django_jobs.contrib.celery.running.job_types import job_type_of, register
from django_jobs.doctor.configuration import examine_rows
from django_jobs.models import Job, Queue, Resource, named_row
from django_jobs.testing import run_jobs
from tests.contrib.celery.project import celery_app, tasks
from tests.contrib.celery.running import run_all
from tests.doctor.finding import findings
from tests.factories import run_sql
from tests.patience import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


def test_the_time_limit_of_the_settings_is_that_of_tasks_without_one() -> None:
    celery_app.conf.task_time_limit = 7
    try:
        assert job_type_of(celery_app, tasks.add.name).timeout == 7
    finally:
        celery_app.conf.task_time_limit = None


def test_a_route_without_a_queue_leads_to_the_default_queue() -> None:
    assert queue_of(celery_app, tasks.add.name, {"priority": 5}) == "default"


def noop() -> None: ...


@pytest.mark.parametrize("length", [200, 201, 250])
def test_a_name_that_is_too_long_is_named(length: int) -> None:
    """The database would say only that a value is too long, in the next migrate."""
    name = "shop." + "n" * (length - 5)
    if length == 200:
        made = celery_app.task(name=name, lazy=False, shared=False)(noop)
        sql_defaults.synchronise("default")
        registry.unregister(made.name)
    else:
        with pytest.raises(ValueError, match=f"the task {name} has a name of {length} characters"):
            celery_app.task(name=name, lazy=False, shared=False)(noop)
    celery_app.tasks.pop(name, None)


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
@pytest.mark.parametrize(
    "option, values, meaning",
    [
        (
            "max_retries",
            ["5", 2.5, -1, True, [1]],
            "is a whole number below 2,147,483,647, or None",
        ),
        ("priority", ["high", 2.5, True], "is a whole number"),
        ("queue", [["a"], 5], "is the name of a queue"),
        ("expires", ["soon", timedelta(5)], "is a number of seconds"),
        ("time_limit", ["5", -5], "is a positive number of seconds"),
        ("soft_time_limit", ["5"], "is a positive number of seconds"),
        ("rate_limit", ["x", -1, "10/x", [1]], "'.*' is not a rate"),
    ],
)
def test_a_declared_option_that_means_nothing_is_named(
    option: str, values: list[Any], meaning: str
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^shop.wrong: {option} {meaning}"):
            celery_app.task(name="shop.wrong", lazy=False, shared=False, **{option: value})(noop)
        celery_app.tasks.pop("shop.wrong", None)


def test_a_time_limit_of_the_settings_that_means_nothing_is_named(
    configure: Callable[..., None],
) -> None:
    configure(task_time_limit="7")
    with pytest.raises(ValueError, match="time_limit is a positive number of seconds"):
        job_type_of(celery_app, tasks.add.name)


class TestTimes:
    def test_a_countdown_postpones_the_job(self) -> None:
        tasks.add.apply_async((1,), countdown=60)
        job = Job.objects.get()
        assert job.status == "scheduled"
        assert (job.available_at - job.created_at) < timedelta(seconds=61)

    @pytest.mark.parametrize("text", [False, True])
    def test_an_eta_is_the_due_time(self, text: bool) -> None:
        eta = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
        tasks.add.apply_async((1,), eta=eta.isoformat() if text else eta)
        assert Job.objects.get().available_at == eta

    @pytest.mark.parametrize("as_moment", [False, True])
    def test_an_expired_task_does_not_run(self, as_moment: bool) -> None:
        expires = datetime.now(UTC) - timedelta(seconds=1) if as_moment else 0.001
        result = tasks.add.apply_async((1,), expires=expires)
        (run,) = run_jobs()
        assert run.error_type == "Expired"
        assert result.state == "REVOKED"
        with pytest.raises(TaskRevokedError, match="expired"):
            result.get(timeout=PATIENCE)

    def test_a_time_limit_is_the_time_out(self) -> None:
        tasks.work.apply_async((0,), time_limit=7)
        tasks.work.apply_async((0,))
        assert [job.timeout for job in Job.objects.order_by("pk")] == [7, 30]


class TestPlaces:
    def test_a_queue_is_that_of_the_name(self) -> None:
        tasks.add.apply_async((1,), queue="emails")
        assert Job.objects.get().queue == "emails"

    def test_an_unknown_queue_is_refused(self) -> None:
        with pytest.raises(UnknownQueue, match="no queue is named 'nowhere'"):
            tasks.add.apply_async((1,), queue="nowhere")

    def test_the_default_queue_is_ours_unless_there_is_one_of_its_name(self) -> None:
        tasks.add.delay(1)
        Queue.objects.create(name="celery")
        tasks.add.delay(1)
        assert [job.queue for job in Job.objects.order_by("pk")] == ["default", "celery"]

    def test_routes_are_obeyed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        routes = {"tests.contrib.*.add": {"queue": "bulk", "priority": 3}}
        monkeypatch.setattr(celery_app.amqp.router, "routes", prepare(routes))
        tasks.add.delay(1)
        job = Job.objects.get()
        assert (job.queue, job.priority) == ("bulk", 3)
        for sent in (tasks.add.starmap([(1, 2)]), tasks.add.chunks([(1, 2)], 1)):
            sent.delay()  # as the task that is called, although another one calls it
            assert Job.objects.latest("pk").queue == "bulk"

    @pytest.mark.parametrize(
        "broker, given, priority",
        [("amqp://", 9, 9), ("memory://", 4, 4), ("redis://", 0, 0), ("redis://", 9, -9)],
    )
    def test_a_priority_means_what_it_means_to_the_broker(
        self, configure: Callable[..., None], broker: str, given: int, priority: int
    ) -> None:
        configure(broker_url=broker)
        tasks.add.apply_async((1,), priority=given)
        assert Job.objects.get().priority == priority

    def test_an_id_of_the_caller_is_the_idempotency_key(self) -> None:
        results = [tasks.describe.apply_async(task_id="report-7") for _ in range(2)]
        assert Job.objects.get().idempotency_key == "report-7"
        run_all()
        assert {result.get(timeout=PATIENCE)["id"] for result in results} == {"report-7"}
        tasks.describe.apply_async(task_id="report-7")
        assert results[0].state == "SUCCESS"
        assert celery_app.AsyncResult("report-7").state == "PENDING"


class TestTasks:
    def test_a_rate_limit_is_a_resource(self, declare: Callable[..., Any]) -> None:
        limited = declare(noop, rate_limit="100/m")
        limited.delay()
        resource = Resource.objects.get(name="project.noop")
        assert (resource.rate, resource.rate_seconds, resource.burst) == (100, 60, 1)
        assert Job.objects.get().resources == ["project.noop"]

    def test_an_ignored_result_is_not_stored(self, declare: Callable[..., Any]) -> None:
        results = [
            tasks.add.apply_async((1,), ignore_result=True),
            declare(lambda_seven, ignore_result=True).delay(),
        ]
        run_all()
        assert [result.get() for result in results] == [None, None]
        assert {job.result for job in Job.objects.all()} == {None}

    def test_a_state_of_its_own_is_seen_while_it_runs(self, declare: Callable[..., Any]) -> None:
        seen = []

        def report(self: Any) -> None:
            self.update_state(state="PROGRESS", meta={"current": 1, "total": 2})
            seen.append(self.request.id)
            raise Ignore

        result = declare(report, bind=True).delay()
        run_all()
        assert (result.state, result.info) == ("PROGRESS", {"current": 1, "total": 2})

    def test_signals_of_celery_are_sent(self) -> None:
        heard: list[str] = []

        def publish(headers: dict[str, Any], **_: Any) -> None:
            headers["request_id"] = "r-1"
            heard.append(headers["id"])

        def hear(signal: Any = None, **_: Any) -> None:
            heard.append(signal.name)

        watched = (signals.task_prerun, signals.task_postrun, signals.task_success)
        signals.before_task_publish.connect(publish)
        for signal in watched:
            signal.connect(hear)
        result = tasks.describe.delay()
        assert heard.pop() == result.id
        run_all()
        signals.before_task_publish.disconnect(publish)
        for signal in watched:
            signal.disconnect(hear)
        assert result.get(timeout=PATIENCE)["headers"] == {"request_id": "r-1"}
        assert result.get(timeout=PATIENCE)["id"] == result.id
        assert sorted(heard) == ["task_postrun", "task_prerun", "task_success"]

    def test_a_task_sends_others_as_its_children(self, declare: Callable[..., Any]) -> None:
        def parent(self: Any) -> str:
            tasks.describe.apply_async(headers={"of": self.request.id})
            return str(self.request.id)

        result = declare(parent, bind=True).delay()
        run_all()
        child = Job.objects.get(job_type=tasks.describe.name)
        assert child.headers["celery"]["parent_id"] == result.get(timeout=PATIENCE)


def lambda_seven() -> int:
    return 7


@pytest.mark.parametrize(
    "options, instead",
    [
        ({"link": "sig"}, r"use chain\(this.s\(\), then.s\(\)\)"),
        ({"link_error": "sig"}, "when='failed'"),
        ({"serializer": "pickle"}, "a payload is JSON"),
        ({"stamped_headers": ["x"], "x": 1}, "headers="),
        ({"exchange": "media", "routing_key": "video"}, "pass queue="),
        ({"colour": "red"}, "no such option"),
    ],
)
def test_what_no_row_can_have_is_refused(options: dict[str, Any], instead: str) -> None:
    if "link" in options or "link_error" in options:
        options = {name: tasks.add.s(1) for name in options}
    with pytest.raises(EnqueueError, match=instead):
        tasks.add.apply_async((1,), **options)
    assert not Job.objects.exists()


@pytest.mark.parametrize("before", ["emails", "nowhere"])
def test_a_queue_of_a_message_before_is_bound_to_no_routing_key(before: str) -> None:
    with suppress(UnknownQueue):
        tasks.add.apply_async((1,), queue=before)
    made = Job.objects.count()
    with pytest.raises(EnqueueError, match=f"no queue of task_queues is bound .*{before!r}"):
        tasks.add.apply_async((1,), routing_key=before)
    assert Job.objects.count() == made


def test_an_exchange_and_a_routing_key_are_those_of_a_declared_queue(
    configure: Callable[..., None],
) -> None:
    amqp = tasks.add.app.amqp
    declared = [kombu.Queue("emails", kombu.Exchange("media"), routing_key="video")]
    configure(task_queues=declared)
    amqp.queues = declared
    try:
        for given in ({"exchange": "media"}, {"routing_key": "video"}):
            tasks.add.apply_async((1,), **given)
        with pytest.raises(EnqueueError, match="no queue of task_queues is bound"):
            tasks.add.apply_async((1,), exchange="media", routing_key="audio")
    finally:
        del amqp.queues  # it reads the setting again
    assert list(Job.objects.values_list("queue", flat=True)) == ["emails", "emails"]


@pytest.mark.parametrize(
    ("option", "meaning", "values"),
    [
        ("countdown", "a number of seconds", [timedelta(5), "5", 1e15, float("nan"), [5]]),
        ("eta", "a datetime, or its ISO text", [5, date.max, datetime.max, "soon", timedelta(5)]),
        ("expires", "a number of seconds, a datetime", [timedelta(5), "soon", 1e18, date.max]),
        ("priority", "a whole number", ["5", 2.5, True]),
        ("queue", "the name of a queue", [["a"], {"name": "a"}, 5]),
        ("headers", "a dict", ["x", 5, ["a"]]),
        ("retries", "a whole number", ["x", 1.5]),
        ("time_limit", "a positive number of seconds, at most", ["5", -5, 1e9, timedelta(5)]),
        ("soft_time_limit", "a positive number of seconds, at most", ["5", -0.5]),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused(
    option: str, meaning: str, values: list[Any]
) -> None:
    for value in values:
        for send in (tasks.total.apply_async, group(tasks.total.s()).apply_async):
            with pytest.raises(EnqueueError, match=f"{option} is {meaning}"):
                send(**{option: value})
    assert not Job.objects.exists()


def test_a_time_without_a_zone_is_in_utc_as_in_celery() -> None:
    tasks.total.apply_async(eta=datetime(2099, 7, 1, 12))
    assert Job.objects.get().available_at == datetime(2099, 7, 1, 12, tzinfo=UTC)


def test_a_task_of_another_worker_is_refused() -> None:
    with pytest.raises(UnknownJobType, match="elsewhere"):
        celery_app.send_task("elsewhere.task")


def test_a_task_is_sent_by_its_name() -> None:
    result = celery_app.send_task("shop.total", [1, 2])
    run_all()
    assert result.get(timeout=PATIENCE) == 3


def test_remote_control_names_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"use manage\.py jobstatus"):
        celery_app.control.inspect()


def starred(*ids: Any) -> None: ...


@pytest.mark.parametrize("args", ["7", "ab", b"7", {"order_id": 7}, {7}, range(1), iter([7])])
def test_arguments_that_are_no_list_are_refused_as_by_celery(
    declare: Callable[..., Any], args: Any
) -> None:
    for task in (tasks.add, declare(starred)):
        for send in (
            lambda task=task: task.apply_async(args),
            lambda task=task: celery_app.send_task(task.name, args),
        ):
            with pytest.raises(TypeError, match="task args must be a list or tuple"):
                send()
    assert not Job.objects.exists()


@pytest.mark.parametrize("kwargs", ["ab", [("x", 1)], ("x",), {"x"}])
def test_keywords_that_are_no_mapping_are_refused_as_by_celery(kwargs: Any) -> None:
    with pytest.raises(TypeError, match="task keyword arguments must be a mapping"):
        celery_app.send_task("shop.total", (), kwargs)
    assert not Job.objects.exists()


@pytest.mark.parametrize("empty", [None, (), [], "", {}])
def test_no_arguments_may_be_written_in_any_way(empty: Any) -> None:
    celery_app.send_task("shop.total", empty, empty)
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    "given, place",
    [
        ({"x": ZoneInfo("UTC")}, "payload.x: Object of type ZoneInfo"),
        ({"x": {"rows": [1, {"zone": {1, 2}}]}}, "payload.x.rows[1].zone: "),
        ({"x": 1, "y": (1, [object()])}, "payload.y[1][0]: "),
    ],
)
def test_an_argument_that_is_no_json_is_named_with_its_place(given: Any, place: str) -> None:
    with pytest.raises(PayloadError, match=re.escape(f"its arguments are not JSON: {place}")):
        tasks.add.apply_async(kwargs=given)


def test_a_header_that_is_no_json_is_named_with_its_place() -> None:
    with pytest.raises(PayloadError, match=re.escape("JSON: headers.zone: ")):
        tasks.add.apply_async((1,), headers={"zone": ZoneInfo("UTC")})


@pytest.mark.parametrize("limit", [None, "100/m"])
def test_a_queue_that_does_not_exist_is_asked_for_once(
    declare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, limit: str | None
) -> None:
    monkeypatch.setattr(named_row, "RECENT_SECONDS", 3_600)
    task = declare(noop, rate_limit=limit)
    task.delay()
    with CaptureQueriesContext(connection) as made:
        for _ in range(3):
            task.delay()
    # Besides, each may notify, if 20 ms have passed since the one before.
    sent = [query["sql"] for query in made if "pg_notify" not in query["sql"]]
    assert [sql.split()[0] for sql in sent] == ["INSERT"] * 3


def test_a_rate_limit_holds_with_its_resource_in_the_settings(
    declare: Callable[..., Any], settings: Any
) -> None:
    """The hint of W002 was to add it there, without its rate."""
    settings.DJANGO_JOBS = {
        "RESOURCES": {
            "project.noop": {},
            "project.starred": {"max_concurrency": 2},
            "project.lambda_seven": {"rate": "7/s"},
        }
    }
    for function in (noop, starred, lambda_seven):
        declare(function, rate_limit="20/m")
    seed(using="default")
    rows = {row.name.removeprefix("project."): row for row in Resource.objects.all()}
    found = {name: (row.rate, row.burst, row.max_concurrency) for name, row in rows.items()}
    assert found["noop"] == (20, 1, None)
    assert found["starred"] == (20, 1, 2)
    assert found["lambda_seven"] == (7, None, None)


def test_a_rate_limit_that_was_changed_is_compared_with_its_row(
    declare: Callable[..., Any],
) -> None:
    limited = declare(noop, rate_limit="20/m")
    assert not findings(examine_rows, "D314"), "the first message makes the row"
    limited.delay()
    Resource.objects.filter(name=limited.name).update(burst=5)
    assert not findings(examine_rows, "D314")
    limited.rate_limit = "5/m"
    register(celery_app, limited.name)
    (differs,) = findings(examine_rows, "D314")
    assert (differs.facts["name"], differs.facts["changed"]) == (limited.name, ["rate"])
    assert "does not have what the rate_limit of its task says" in differs.problem


def test_the_resource_of_a_rate_limit_is_no_warning(declare: Callable[..., Any]) -> None:
    declare(noop, rate_limit="6/m")
    assert "project.noop" not in str(run_checks(tags=["django_jobs"]))


@pytest.mark.parametrize("send", [lambda: tasks.add.delay(1), lambda: group([tasks.add.s(1)])()])
def test_sending_before_the_tables_exist_names_the_dependency(send: Callable[[], Any]) -> None:
    wanted = r'needs the dependency \("django_jobs", "0001_initial"\)'
    with transaction.atomic():
        run_sql("DROP TABLE django_jobs_run, django_jobs_job, django_jobs_queue CASCADE")
        with pytest.raises(NotMigrated, match=wanted):
            send()
        transaction.set_rollback(True)
