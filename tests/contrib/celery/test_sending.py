"""What is sent from where, and what the task sees of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

pytest.importorskip("celery")

from asgiref.sync import async_to_sync
from celery import VERSION, chain, group, signals
from celery.exceptions import Retry, TaskRevokedError
from celery.result import AsyncResult
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from django_jobs.api.job_type import JobType
from django_jobs.contrib.celery.beat.declared import schedule_of
from django_jobs.contrib.celery.messages.options import task_id_of
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Queue
from django_jobs.testing import run_jobs
from tests.contrib.celery.project import celery_app, tasks
from tests.contrib.celery.running import run_all
from tests.factories import due_schedule, look, run_sql
from tests.patience import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


@pytest.fixture
def seen(declare: Callable[..., Any]) -> Callable[..., Any]:
    """Sends a task with these options, and returns the request that it saw."""
    requests: list[Any] = []

    def see(self: Any, *args: Any, **kwargs: Any) -> None:
        requests.append(self.request)

    task = declare(see, bind=True, typing=False)

    def seen(*args: Any, **options: Any) -> Any:
        task.apply_async(*args, **options)
        run_all()
        return requests.pop()

    return seen


def test_a_request_has_what_that_of_celery_has(seen: Callable[..., Any]) -> None:
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    request = seen(((1, 2),), {"a": "b"}, headers={"at": at, "flag": False, "key": UUID(int=7)})
    assert (request.argsrepr, request.kwargsrepr) == ("([1, 2],)", "{'a': 'b'}")
    assert request.headers == {"at": at, "flag": False, "key": UUID(int=7)}
    assert (request.root_id, request.parent_id, request.correlation_id) == (
        *(request.id, None, request.id),
    )
    assert (request.chord, request.chain, request.group, request.eta) == (None, None, None, None)
    properties = request.properties
    assert (properties["correlation_id"], properties["reply_to"]) == (request.id, "")
    assert properties["priority"] == request.delivery_info["priority"] == 0


@pytest.mark.parametrize("options", [{"countdown": 60}, {"eta": datetime(2100, 1, 1, tzinfo=UTC)}])
def test_a_request_has_the_time_when_it_was_due(
    options: dict[str, Any], seen: Callable[..., Any]
) -> None:
    expected = options.get("eta") or datetime.now(UTC) + timedelta(seconds=60)
    eta = datetime.fromisoformat(seen(**options).eta)
    assert abs(eta - expected) < timedelta(seconds=30)


def test_a_retry_and_a_later_step_have_a_time_of_their_own(declare: Callable[..., Any]) -> None:
    etas = []

    def once(self: Any) -> None:
        etas.append(self.request.eta and datetime.fromisoformat(self.request.eta))
        if not self.request.retries:
            raise self.retry(countdown=1, exc=Retry())

    task = declare(once, bind=True)
    chain(task.si().set(countdown=3600), task.si(), task.si().set(countdown=7200)).delay()
    began = datetime.now(UTC)
    run_all()
    assert etas.pop(2) is None
    first, *others = etas
    assert first - began > timedelta(minutes=59)
    assert all(abs(eta - began) < timedelta(minutes=59) for eta in others), "as it was run now"


def test_options_that_concern_what_is_shown_and_the_message_are_accepted(
    seen: Callable[..., Any],
) -> None:
    given = {
        **{"argsrepr": "('4***',)", "kwargsrepr": "{}", "correlation_id": "c-1"},
        **{"reply_to": "r-1", "app_id": "shop", "type": "t", "timestamp": 5},
    }
    request = seen(("4242",), **given)
    assert (request.argsrepr, request.kwargsrepr) == ("('4***',)", "{}")
    assert (request.correlation_id, request.reply_to) == ("c-1", "r-1")
    assert (request.properties["app_id"], request.properties["type"]) == ("shop", "t")
    assert request.args == ["4242"]


def test_a_receiver_may_change_arguments_and_headers(seen: Callable[..., Any]) -> None:
    def publish(headers: dict[str, Any], body: Any, properties: dict[str, Any], **_: Any) -> None:
        assert headers["argsrepr"] == "([1],)"
        assert headers["origin"]
        assert (headers["stamps"], properties["correlation_id"]) == ({}, headers["id"])
        body[0][0].append(2)
        body[1]["more"] = "x"
        headers["trace"] = "t"

    signals.before_task_publish.connect(publish)
    try:
        request = seen(([1],), {})
    finally:
        signals.before_task_publish.disconnect(publish)
    assert (request.args, request.kwargs, request.headers) == (
        [[1, 2]],
        {"more": "x"},
        {"trace": "t"},
    )


def test_a_receiver_after_it_reads_the_same_headers(seen: Callable[..., Any]) -> None:
    heard: list[dict[str, Any]] = []

    def published(headers: dict[str, Any], **_: Any) -> None:
        heard.append(headers)

    signals.after_task_publish.connect(published)
    try:
        request = seen(([1],), {})
    finally:
        signals.after_task_publish.disconnect(published)
    assert (heard[0]["argsrepr"], heard[0]["id"]) == ("([1],)", request.id)
    assert "@" in heard[0]["origin"]


def test_what_follows_from_the_options_is_kept_for_the_next_message(
    declare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for one with other options, of any kind."""

    def kept(x: Any = None, y: Any = None) -> None: ...

    task = declare(kept, typing=False)
    using, copies = JobType.using, []

    def counted(self: Any, **options: Any) -> Any:
        copies.append(options)
        return using(self, **options)

    monkeypatch.setattr(JobType, "using", counted)
    for number in range(3):
        task.delay(number)
    assert len(copies) == 1
    due = timezone.now() + timedelta(hours=1)
    others: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((1, 2), {}),
        ((1, {"b": 1, "a": 2}), {}),
        ((1,), {"queue": "emails"}),
        ((1,), {"priority": 3}),
        ((1,), {"countdown": 60}),
        ((1,), {"eta": due}),
        ((1,), {"headers": {"trace": "1"}}),
        ((1,), {"headers": {"trace": "2"}}),
        ((1,), {"task_id": "chosen"}),
        ((1,), {"expires": 60}),
        ((1,), {"shadow": "another"}),
        ((), {}),
        ((1, 2, 3), {}),  # which the task does not take
        ((), {}),
    ]
    sent = [task.apply_async(args, **options).id for args, options in others]
    jobs = {task_id_of(job.pk): job for job in Job.objects.order_by("pk")[3:]}
    made = [jobs.get(one) or Job.objects.get(idempotency_key=one) for one in sent]
    assert [job.payload for job in made[:2]] == [
        {"x": 1, "y": 2},
        {"x": 1, "y": {"b": 1, "a": 2}},
    ]
    assert made[1].headers["celery"]["orders"] == [["b", "a"]]
    assert "orders" not in made[2].headers["celery"]
    assert [(job.queue, job.priority) for job in made[2:5]] == [
        ("emails", 0),
        ("default", 3),
        ("default", 0),
    ]
    assert [job.status for job in made[4:7]] == ["scheduled", "scheduled", "ready"]
    assert [job.headers.get("trace") for job in made[5:9]] == [None, "1", "2", None]
    assert [job.idempotency_key for job in made[7:10]] == [None, "chosen", None]
    assert [job.expires_at is None for job in made[8:11]] == [True, False, True]
    assert made[10].headers["celery"]["shadow"] == "another"
    assert made[11].headers == made[13].headers == {}
    assert made[12].payload == {"args": [1, 2, 3], "kwargs": {}}
    assert made[13].payload == {}


def test_options_that_change_in_place_are_not_taken_for_the_last_ones() -> None:
    headers = {"trace": "1", "path": ["a"]}
    tasks.add.apply_async((1,), headers=headers)
    headers["trace"] = "2"
    tasks.add.apply_async((1,), headers=headers)
    headers["path"].append("b")  # type: ignore[attr-defined]
    tasks.add.apply_async((1,), headers=headers)
    seen = [(job.headers["trace"], job.headers["path"]) for job in Job.objects.order_by("pk")]
    assert seen == [("1", ["a"]), ("2", ["a"]), ("2", ["a", "b"])]


@pytest.mark.skipif(VERSION < (5, 7), reason="this version of Celery does not")
@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
@pytest.mark.parametrize(
    "send",
    [
        lambda: celery_app.send_task("project.queued"),
        lambda: celery_app.signature("project.queued").delay(),
    ],
)
def test_a_task_that_is_sent_by_its_name_has_its_own_options(
    send: Any, declare: Callable[..., Any]
) -> None:
    def queued() -> None: ...

    declare(queued, queue="bulk", priority=4, time_limit=7)
    send()
    celery_app.send_task("project.queued", queue="emails", priority=1, time_limit=None)
    first, second = Job.objects.order_by("pk")
    assert (first.queue, first.priority, first.timeout) == ("bulk", 4, 7)
    assert (second.queue, second.priority) == ("emails", 1)


def test_an_id_may_be_a_uuid() -> None:
    chosen = uuid4()
    result = tasks.describe.apply_async(task_id=chosen)
    run_all()
    assert result.id == str(chosen) == AsyncResult(str(chosen)).get(timeout=PATIENCE)["id"]


def test_the_id_of_a_job_of_a_schedule_is_a_uuid() -> None:
    due_schedule(job_type=tasks.describe.name, payload={})
    look()
    run_jobs()
    job = Job.objects.get()
    assert job.idempotency_key.startswith("schedule/")
    task_id = job.result["id"]
    assert str(UUID(task_id)) == task_id
    assert AsyncResult(task_id).get(timeout=PATIENCE)["id"] == task_id


@pytest.mark.parametrize(
    "send",
    [
        lambda: tasks.add.delay(1),
        lambda: tasks.add.apply_async((1,)),
        lambda: celery_app.send_task("shop.total", [1]),
        lambda: tasks.add.s(1).delay(),
        lambda: chain(tasks.add.s(1), tasks.add.s(1)).delay(),
        lambda: group(tasks.add.s(1), tasks.add.s(1))(),
    ],
)
def test_async_code_is_told_what_to_await(send: Any) -> None:
    async def view() -> None:
        send()

    with pytest.raises(SynchronousOnlyOperation, match=r"await task\.adelay"):
        async_to_sync(view)()
    assert not Job.objects.exists()


def test_async_code_sends_a_task() -> None:
    async def view() -> Any:
        await tasks.add.adelay(1, y=1)
        return await tasks.add.aapply_async((2,), {"y": 2}, queue="bulk", countdown=60)

    result = async_to_sync(view)()
    run_all()
    assert [(job.payload, job.queue) for job in Job.objects.order_by("pk")] == [
        *(({"x": 1, "y": 1}, "default"), ({"x": 2, "y": 2}, "bulk")),
    ]
    assert result.get(timeout=PATIENCE) == 4


@pytest.mark.parametrize(
    "send", [lambda: tasks.add.delay(1), lambda: chain(tasks.add.s(1), tasks.add.s(1)).delay()]
)
@pytest.mark.parametrize("knows", [True, False])
def test_a_transaction_that_is_broken_says_what_to_write(send: Any, knows: bool) -> None:
    """Whether Django ``knows`` it, or PostgreSQL alone."""

    def create() -> None:
        if knows:
            Queue.objects.bulk_create([Queue(name="default")])
        else:
            run_sql("INSERT INTO django_jobs_queue SELECT * FROM django_jobs_queue")

    @transaction.atomic
    def send_after_an_error() -> None:
        try:
            create()
        except IntegrityError:
            send()

    with pytest.raises(TransactionManagementError, match=r"`with transaction\.atomic\(\):`"):
        send_after_an_error()
    assert not Job.objects.exists()
    create = transaction.atomic(create)
    send_after_an_error()
    assert Job.objects.exists()


ORDERS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (({"zeta": 1, "alpha": 2, "b": 3},), {}),
    (([{"zz": {"y": 1, "x": [{"b": 1, "a": 2}]}, "é": 0}, {"ö": 1, "zz": 2}],), {}),
    ((), {"zeta": 1, "alpha": {"d": 1, "c": 2}, "b": 3}),
    (({"b": {"__type__": "x", "z": datetime(2026, 1, 2, tzinfo=UTC), "a": 1}},), {"z": 1, "a": 2}),
]


def text(args: Any, kwargs: Any) -> str:
    return repr((list(args), kwargs))


@pytest.mark.parametrize(("args", "kwargs"), ORDERS)
@pytest.mark.parametrize("kind", ["any", "named", "keywords"])
def test_keys_keep_their_order(
    kind: str, args: Any, kwargs: Any, declare: Callable[..., Any]
) -> None:
    def any_(self: Any, *args: Any, **kwargs: Any) -> str:
        return text(args, kwargs)

    def named(self: Any, given: Any = None, **kwargs: Any) -> str:
        return text([] if given is None else [given], kwargs)

    def again(self: Any, given: Any = None, **kwargs: Any) -> str:
        if not self.request.retries:
            raise self.retry(args=self.request.args, kwargs={**kwargs, "new": 1, "c": 2})
        return text(
            self.request.args, {key: kwargs[key] for key in kwargs if key not in ("new", "c")}
        )

    function = {"any": any_, "named": named, "keywords": again}[kind]
    declare(function, bind=True).apply_async(args, kwargs)
    run_all()
    assert Job.objects.get().result == text(args, kwargs)


def test_keys_of_a_step_and_of_a_schedule_keep_their_order(declare: Callable[..., Any]) -> None:
    def named(given: Any, more: Any = None) -> list[Any]:
        return [list(given), list(more)]

    task, given, more = declare(named), {"zeta": 1, "a": 2}, {"y": 1, "x": 2}
    chain(tasks.add.si(1), task.si(given, more=more)).delay()
    entry = {"task": task.name, "schedule": 60, "args": [given], "kwargs": {"more": more}}
    payload = schedule_of(celery_app, "nightly", entry)["payload"]
    due_schedule(job_type=task.name, payload=payload)
    look()
    run_all()
    results = Job.objects.filter(job_type=task.name).values_list("result", flat=True)
    assert list(results) == [[["zeta", "a"], ["y", "x"]]] * 2


def scheduled(task: Any, expires: float) -> Job:
    """The job that an entry of beat with these seconds of ``expires`` has made."""
    entry = {"task": task.name, "schedule": 60, "options": {"expires": expires}}
    payload = schedule_of(celery_app, "nightly", entry)["payload"]
    due_schedule(job_type=task.name, payload=payload)
    look()
    return Job.objects.get()


@pytest.mark.parametrize(("seconds_late", "runs"), [(0, True), (20, True), (40, False)])
def test_a_job_of_an_entry_that_expires_is_not_run_later(
    declare: Callable[..., Any], seconds_late: float, runs: bool
) -> None:
    ran: list[str] = []
    revoked: list[tuple[str, bool]] = []

    def tick(self: Any) -> None:
        ran.append(self.request.expires)

    def receive(request: Any, expired: bool, **_: Any) -> None:
        revoked.append((request.id, expired))

    job = scheduled(declare(tick, bind=True), 30)
    due = job.available_at - timedelta(seconds=seconds_late)
    Job.objects.update(available_at=due)
    signals.task_revoked.connect(receive)
    try:
        run_all()
    finally:
        signals.task_revoked.disconnect(receive)
    result = AsyncResult(task_id_of(job.pk), app=celery_app)
    if runs:
        assert (ran, revoked) == ([(due + timedelta(seconds=30)).isoformat()], [])
        assert result.state == "SUCCESS"
    else:
        assert (ran, revoked, result.state) == ([], [(result.id, True)], "REVOKED")
        with pytest.raises(TaskRevokedError, match=r"^expired$"):
            result.get(timeout=PATIENCE)


@pytest.mark.parametrize("is_retried", [False, True])
def test_an_expired_message_that_is_replayed_runs(
    declare: Callable[..., Any], is_retried: bool
) -> None:
    """A replay has no maximum age, and its headers still have the time at which it expired."""
    ran: list[int] = []

    def work(self: Any) -> None:
        ran.append(self.request.retries)
        if is_retried and not self.request.retries:
            self.retry(countdown=0)

    sent = declare(work, bind=True).apply_async(expires=datetime.now(UTC) - timedelta(seconds=1))
    run_all()
    assert (ran, sent.state) == ([], "REVOKED")
    assert job_operations.replay([Job.objects.get().pk], check=lambda job: None)
    run_all()
    assert ran == ([0, 1] if is_retried else [0])
    assert AsyncResult(sent.id, app=celery_app).state == "SUCCESS"  # the first one keeps its state


def test_a_retry_of_it_does_not_expire_later(declare: Callable[..., Any]) -> None:
    def again(self: Any) -> str:
        if not self.request.retries:
            raise self.retry(countdown=3600)
        return str(self.request.expires)

    job = scheduled(declare(again, bind=True), 7200)
    expires = (job.available_at + timedelta(seconds=7200)).isoformat()
    run_jobs()
    run_all()
    assert Job.objects.get().result == expires


def test_an_ordinary_payload_has_no_order_in_its_headers() -> None:
    tasks.add.delay(1, y={"id": 1, "name": "x", "rows": [{"a": 1, "b": 2}]})
    job = Job.objects.get()
    assert job.headers["celery"] == {"by_position": ["x"]}
    assert job.payload == {"x": 1, "y": {"id": 1, "name": "x", "rows": [{"a": 1, "b": 2}]}}
