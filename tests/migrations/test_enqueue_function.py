"""The function ``django_jobs_enqueue`` writes the rows that ``enqueue`` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, transaction

from django_jobs import Backoff, EnqueueError, JobType
from django_jobs.api import sql_defaults
from django_jobs.lifecycle.enqueueing import GATED
from django_jobs.models import Job, JobTypeDefaults, Queue, UniqueKey
from django_jobs.testing import run_jobs
from tests.app.jobs import add, noop
from tests.factories import declared, in_threads, listening, run_sql

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _known(db: None) -> None:
    sql_defaults.synchronise("default")


def call(job_type: str, payload: Any = None, **options: Any) -> Job:
    """Call the function with named arguments."""
    names = "".join(f", {name} => %s" for name in options)
    ((id_,),) = run_sql(
        f"SELECT django_jobs_enqueue(%s, %s::jsonb{names})",
        [job_type, json.dumps({} if payload is None else payload), *options.values()],
    )
    return Job.objects.get(pk=id_)


def columns(job: Job) -> dict[str, Any]:
    """All but what differs between two jobs that are enqueued one after the other."""
    row = {field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields}
    times = {row.pop(name) for name in ("created_at", "available_at", "expires_at", "rank", "id")}
    assert times
    return row


def handler(order_id: int, note: str = "") -> None: ...


@pytest.fixture
def special() -> Iterator[JobType[..., Any]]:
    """A job type with each option that a row has."""
    with declared(
        handler,
        name="app.special",
        queue="bulk",
        priority=7,
        max_crashes=2,
        timeout=30,
        max_age=3600,
        delivery="at_most_once",
        version=4,
        upgrades={1: dict, 2: dict, 3: dict},
    ) as job_type:
        sql_defaults.synchronise("default")
        yield job_type


@pytest.mark.parametrize("queue", [None, "emails"])
def test_a_row_has_the_defaults_that_an_enqueue_writes(
    special: JobType[..., Any], queue: str | None
) -> None:
    Queue.objects.filter(name="emails").update(
        backoff=Backoff.fixed(3).as_json(), max_attempts=9, timeout=7
    )
    Queue.objects.forget_recent()
    with declared(noop.handler, name="app.plain", backoff=Backoff.linear(4)) as plain:
        sql_defaults.synchronise("default")
        for job_type, payload in ((special, {"order_id": 1}), (plain, {}), (add, {"first": 1})):
            expected = job_type.using(queue=queue).enqueue(**payload)
            made = call(job_type.name, payload, queue=queue)
            expected = Job.objects.get(pk=expected.pk)
            assert columns(made) == columns(expected)
            weight = Queue.objects.get(name=made.queue).priority_weight
            assert made.rank == pytest.approx(
                made.available_at.timestamp() - made.priority * weight
            )
            assert made.available_at == made.created_at
            if expected.expires_at is not None:
                assert made.expires_at == made.created_at + timedelta(hours=1)


def test_the_function_writes_the_columns_of_an_enqueue() -> None:
    ((text,),) = run_sql("SELECT pg_get_functiondef('django_jobs_enqueue'::regproc)")
    named = re.search(r"INSERT INTO \S+_job_live \((.*?)\)", text, re.DOTALL)
    assert named is not None
    assert {name.strip() for name in named[1].split(",")} == {"id", *GATED}


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_a_tag_is_checked_whatever_the_server_does_with_backslashes(conforming: str) -> None:
    run_sql(f"SET LOCAL standard_conforming_strings = {conforming}")
    assert call("app.noop", {}, tags=["u2028", "a\u00a0b"], tenant="u0001").tags
    for tag in ("a\u0007b", "a\u0085b", "\u00a0a", "a\u2028"):
        with pytest.raises(Error, match="tag is text"), transaction.atomic():
            call("app.noop", {}, tags=[tag])
    with pytest.raises(Error, match="tenant is text"), transaction.atomic():
        call("app.noop", {}, tenant="a\u009fb")


def test_options_are_given_by_name() -> None:
    job = call(
        "app.add",
        {"first": 1},
        queue="strict",
        priority=-3,
        delay="5 minutes",
        idempotency_key="k",
        max_attempts=2,
        headers='{"from": "sql"}',
        tags=["vip", "eu", "vip"],
    )
    assert (job.queue, job.priority, job.status) == ("strict", -3, "scheduled")
    assert job.available_at == job.created_at + timedelta(minutes=5)
    assert (job.idempotency_key, job.max_attempts) == ("k", 2)
    assert job.headers == {"from": "sql"}
    assert job.tags == ["eu", "vip"]
    at = job.available_at
    assert call("app.noop", run_at=at).available_at == at


def test_a_held_key_returns_the_job_that_holds_it() -> None:
    first = noop.using(idempotency_key="k").enqueue()
    assert call("app.noop", idempotency_key="k") == first
    assert call("app.noop", queue="bulk", idempotency_key="k") != first


def test_a_key_is_unique_for_its_time_as_after_an_enqueue() -> None:
    first = call("app.noop", idempotency_key="k", unique_for="1 hour")
    kept = UniqueKey.objects.get()
    assert (kept.queue, kept.key, kept.job_type, kept.job_id) == (
        *("default", "k", "app.noop"),
        first.pk,
    )
    assert kept.expires_at == first.created_at + timedelta(hours=1)
    hourly = noop.using(idempotency_key="k", unique_for=3600)
    for _ in ("live", "ended"):
        assert call("app.noop", idempotency_key="k", unique_for="1 hour") == first
        assert hourly.enqueue() == first
        run_jobs()
    assert call("app.noop", queue="bulk", idempotency_key="k", unique_for="1 hour") != first
    run_sql("UPDATE django_jobs_uniquekey SET expires_at = statement_timestamp()")
    second = call("app.noop", idempotency_key="k", unique_for="1 hour")
    assert second != first
    assert UniqueKey.objects.get(queue="default").job_id == second.pk


def test_a_live_job_without_a_time_holds_its_key_too() -> None:
    plain = noop.using(idempotency_key="k").enqueue()
    assert call("app.noop", idempotency_key="k", unique_for="1 hour") == plain
    assert not UniqueKey.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_concurrent_requests_from_sql_and_python_one_makes_the_job() -> None:
    sql_defaults.synchronise("default")

    def enqueue(number: int) -> list[int]:
        ids = []
        for turn in range(30):
            key = f"key {turn}"
            if number % 2:
                ids.append(call("app.noop", idempotency_key=key, unique_for="1 hour").pk)
            else:
                ids.append(noop.using(idempotency_key=key, unique_for=3600).enqueue().pk)
        return ids

    first, *others = in_threads(4, enqueue)
    assert others == [first] * 3
    assert len(set(first)) == Job.objects.count() == UniqueKey.objects.count() == 30


def test_attempts_are_as_many_as_an_enqueue_takes() -> None:
    assert call("app.noop", max_attempts=2**31 - 1).max_attempts == 2**31 - 1


def test_a_tenant_is_the_gate_that_an_enqueue_makes() -> None:
    for name in ("acme", 'Zoë "&" \\ co/1'):
        expected = Job.objects.get(pk=noop.using(tenant=name).enqueue().pk)
        assert columns(call("app.noop", tenant=name)) == columns(expected)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED = {
    "unknown job type 'app.nope'": ("app.nope", {}, {}),
    "no queue is named 'nowhere'": ("app.noop", {}, {"queue": "nowhere"}),
    "the payload is not an object of arguments": ("app.noop", [1], {}),
    "headers are not an object": ("app.noop", {}, {"headers": "[]"}),
    "the payload lacks first": ("app.add", {"second": 1}, {}),
    "app.add does not take third": ("app.add", {"first": 1, "third": 2}, {}),
    "the payload is larger than": ("app.add", {"first": "x" * 1_100_000}, {}),
    "headers are larger than": ("app.noop", {}, {"headers": json.dumps({"a": "x" * 2_000_000})}),
    "payload and headers are not nested deeper than 64 levels": (
        "app.add",
        {"first": nested(600)},
        {},
    ),
    "not nested deeper": ("app.noop", {}, {"headers": json.dumps({"a": nested(64)})}),
    "priority is a whole number from -100 to 100, not 101": ("app.noop", {}, {"priority": 101}),
    "give run_at or delay, not both": ("app.noop", {}, {"run_at": "2030-01-01", "delay": "1 s"}),
    "and delay not negative": ("app.noop", {}, {"delay": "-1 s"}),
    "run_at is within 36600 days of now": ("app.noop", {}, {"run_at": "infinity"}),
    "max_attempts is a whole number from 1 to 2147483647, not 0": (
        *("app.noop", {}),
        {"max_attempts": 0},
    ),
    "unique_for needs an idempotency key": ("app.noop", {}, {"unique_for": "1 h"}),
    "unique_for is positive": ("app.noop", {}, {"idempotency_key": "k", "unique_for": "0"}),
    "and at most 36600 days": ("app.noop", {}, {"idempotency_key": "k", "unique_for": "101 y"}),
    "an idempotency key is text of": ("app.noop", {}, {"idempotency_key": ""}),
    "an idempotency key is text of 1 to 200": ("app.noop", {}, {"idempotency_key": "k" * 201}),
    "tenant is text of": ("app.noop", {}, {"tenant": "a\nb"}),
    "tenant is text of 1 to 100": ("app.noop", {}, {"tenant": "a\x85b"}),
    "a tag is text of": ("app.noop", {}, {"tags": ["a\x85b"]}),
    "a tag is text of 1 to 100": ("app.noop", {}, {"tags": ["\xa0vip"]}),
    "a job has at most 20 tags, not 21": ("app.noop", {}, {"tags": [str(n) for n in range(21)]}),
    "has resources, a concurrency key or a tenant": ("app.transfer_funds", {"account_id": 1}, {}),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_an_enqueue_refuses_is_refused(problem: str) -> None:
    job_type, payload, options = REFUSED[problem]
    with pytest.raises(Error) as refused, transaction.atomic():
        call(job_type, payload, **options)
    assert problem in str(refused.value)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"a": "x" * 2_000_000}},
        {"headers": {"a": nested(64)}},
        {"idempotency_key": "k" * 201},
        {"tenant": "a\x85b"},
        {"tags": ["a\x85b"]},
        {"tags": ["\xa0vip"]},
        {"tags": ["vip "]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_python_refuses_the_same_options(options: dict[str, Any]) -> None:
    with pytest.raises(EnqueueError):
        noop.using(**options).enqueue()
    if "headers" in options:
        options = {"headers": json.dumps(options["headers"])}
    with pytest.raises(Error), transaction.atomic():
        call("app.noop", **options)


def test_attempts_of_a_job_that_is_delivered_at_most_once_are_refused_as_in_python() -> None:
    with declared(handler, name="app.once", delivery="at_most_once") as once:
        sql_defaults.synchronise("default")
        for most in (2, 2**31 - 1):
            with pytest.raises(EnqueueError, match=f"max_attempts is 1, not {most}"):
                once.using(max_attempts=most)
            with (
                pytest.raises(Error, match=f"max_attempts is 1, not {most}"),
                transaction.atomic(),
            ):
                call("app.once", {"order_id": 7}, max_attempts=most)
        assert call("app.once", {"order_id": 7}, max_attempts=1).max_attempts == 1
        usual = call("app.once", {"order_id": 7}).max_attempts
        assert usual == once.enqueue(order_id=7).max_attempts


def test_python_takes_what_sql_takes() -> None:
    deepest, headers = nested(63), {"a": nested(63)}
    expected = Job.objects.get(pk=add.enqueue(deepest).pk)
    assert columns(call("app.add", {"first": deepest})) == columns(expected)
    expected = Job.objects.get(pk=noop.using(headers=headers).enqueue().pk)
    assert columns(call("app.noop", headers=json.dumps(headers))) == columns(expected)
    for key in ("a\x85b", "a\nb", "k" * 200):
        expected = noop.using(idempotency_key=key).enqueue()
        assert call("app.noop", idempotency_key=key) == expected
    for tag in ("a b", "a\xa0b", "\u200bvip"):
        expected = Job.objects.get(pk=noop.using(tags=[tag]).enqueue().pk)
        assert call("app.noop", tags=[tag]).tags == expected.tags == [tag]


def test_a_full_queue_is_refused() -> None:
    Queue.objects.filter(name="default").update(max_backlog=2)
    for _ in range(2):
        call("app.noop")
    with (
        pytest.raises(Error, match=r"queue 'default' is full: .* max_backlog of 2"),
        transaction.atomic(),
    ):
        call("app.noop")


def test_a_paused_queue_takes_jobs() -> None:
    run_sql("UPDATE django_jobs_queue SET paused_at = now() WHERE name = 'default'")
    assert call("app.noop").status == "ready"


@pytest.mark.django_db(transaction=True)
def test_workers_are_woken_after_the_commit() -> None:
    sql_defaults.synchronise("default")
    with listening() as notified:
        with transaction.atomic():
            call("app.noop")
            call("app.noop", tenant="acme")
            assert notified() == []
        assert sorted(notified()) == [":blocked:default", "default"]


TRIGGER = """
CREATE FUNCTION enqueue_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM django_jobs_enqueue('app.write_effect', jsonb_build_object('note', NEW.note));
    RETURN NEW;
END $$;
CREATE TRIGGER enqueue_note AFTER INSERT ON app_effect
    FOR EACH ROW EXECUTE FUNCTION enqueue_note()
"""


def test_a_trigger_enqueues_in_the_transaction_of_the_row() -> None:
    run_sql(TRIGGER)
    run_sql("INSERT INTO app_effect (note, created_at) VALUES ('from psql', now())")
    assert Job.objects.get().payload == {"note": "from psql"}


def test_a_role_needs_no_more_than_execute_and_others_have_not_that() -> None:
    run_sql("CREATE ROLE only_enqueues; CREATE SCHEMA evil")
    run_sql("GRANT USAGE, CREATE ON SCHEMA evil TO only_enqueues")
    run_sql("SET LOCAL ROLE only_enqueues")
    with pytest.raises(Error, match="permission denied for function"), transaction.atomic():
        run_sql("SELECT django_jobs_enqueue('app.noop')")
    run_sql("RESET ROLE; GRANT EXECUTE ON FUNCTION django_jobs_enqueue TO only_enqueues")
    run_sql("SET LOCAL ROLE only_enqueues")
    run_sql("CREATE TABLE evil.django_jobs_queue (name text)")
    run_sql("SET LOCAL search_path = evil, public")
    assert run_sql("SELECT public.django_jobs_enqueue('app.noop')")
    with pytest.raises(Error, match="permission denied for table"), transaction.atomic():
        run_sql("SELECT * FROM public.django_jobs_job_live")
    run_sql("RESET ROLE")


# What SQL knows


def test_migrate_writes_the_declared_job_types_and_removes_others() -> None:
    JobTypeDefaults.objects.create(name="app.gone", options={})
    with declared(handler, name="app.new") as job_type:
        sql_defaults.synchronise("default")
        row = JobTypeDefaults.objects.get(name=job_type.name)
        assert (row.options["needs"], row.options["takes"]) == (["order_id"], ["note", "order_id"])
        assert not JobTypeDefaults.objects.filter(name="app.gone").exists()
    sql_defaults.synchronise("default")
    assert not JobTypeDefaults.objects.filter(name="app.new").exists()
