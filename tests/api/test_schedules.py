"""Schedules that are declared in code, and how the table comes to know them."""

from __future__ import annotations

import datetime as dt
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries, Settings

from django_jobs import registry, run_now, schedule
from django_jobs.api.schedules import FIELDS, Requests, request_of, synchronise
from django_jobs.apps import take_over
from django_jobs.exceptions import (
    OperationRefused,
    PayloadError,
    QueueFull,
    UnknownJobType,
    UnknownQueue,
)
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import Queue, Schedule
from tests.app.jobs import add, mark, noop, summarise
from tests.factories import due_schedule, in_threads, listening, look, run_sql
from tests.lifecycle.operations.test_jobs import wait_for_a_blocked_session
from tests.patience import PATIENCE

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
PARIS = dt.timezone(dt.timedelta(hours=1))


@pytest.fixture(autouse=True)
def _nothing_else_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """No schedule of the demo, and none that a test declared remains."""
    monkeypatch.setattr(registry, "_schedules", {})
    monkeypatch.setattr(registry, "_schedule_clashes", set())


def declare(name: str = "nightly", job_type: Any = noop, **options: Any) -> None:
    schedule(name, job_type, **({"every": 3600} | options))


def table() -> dict[str, Schedule]:
    synchronise("default")
    return {row.name: row for row in Schedule.objects.all()}


# Declare


def test_a_declared_job_type_has_its_name_and_the_defaults() -> None:
    schedule("nightly", summarise, cron="0 3 * * *", payload={"day": "x"})
    fields = registry.schedules()["nightly"]
    assert tuple(fields) == FIELDS
    assert fields | {"cron": ""} == {
        **dict.fromkeys(("cron", "queue"), ""),
        **dict.fromkeys(("priority", "every", "starts_at", "ends_at"), None),
        **dict.fromkeys(("overlap_limit", "catch_up_limit", "pause_after_dead"), None),
        "excluded_dates": [],
        "max_jobs": None,
        "job_type": "app.summarise",
        "payload": {"day": "x"},
        "timezone": "UTC",
        "enabled": True,
        "jitter_seconds": 0.0,
        "dst": "once",
        "overlap": "skip",
        "catch_up": "latest",
    }


def test_an_interval_may_be_a_timedelta_and_a_job_type_a_name() -> None:
    declare(job_type="elsewhere.only", every=dt.timedelta(minutes=5), starts_at=NOON)
    declare("exact", every=Decimal("1.5"))
    assert registry.schedules()["nightly"]["every"] == 300.0
    assert registry.schedules()["exact"]["every"] == 1.5


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "interval": ({"interval": 5}, TypeError, "no option 'interval'; .* every=3600"),
    "kwargs": ({"kwargs": {}}, TypeError, "no option 'kwargs'; did you mean 'payload'?"),
    "no rule": ({"every": None}, ValueError, "either a cron expression or every"),
    "two rules": ({"cron": "* * * * *"}, ValueError, "either a cron expression or every"),
    "a broken cron": ({"every": None, "cron": "* * *"}, ValueError, "cron: "),
    "a cron that never fires": ({"every": None, "cron": "0 0 31 2 *"}, ValueError, "cron: "),
    "a cron that is no text": ({"cron": 5}, TypeError, "cron is text, not 5"),
    "a cron of None": ({"cron": None}, TypeError, "cron is text, not None"),
    "an interval too short": ({"every": 0.5}, ValueError, "from 1 second"),
    "an interval that is text": ({"every": "1h"}, ValueError, "a number of seconds, not str"),
    "an unknown zone": ({"timezone": "Paris"}, ValueError, "timezone: no time zone is called"),
    "a zone object": ({"timezone": dt.UTC}, TypeError, "timezone is text"),
    "a date": ({"starts_at": NOON.date()}, TypeError, "starts_at is a datetime"),
    "a date in text": ({"ends_at": "2026-01-01"}, TypeError, "ends_at is a datetime"),
    "a naive bound": ({"ends_at": NOON.replace(tzinfo=None)}, ValueError, "needs a time zone"),
    "an end before the start": (
        {"starts_at": NOON, "ends_at": NOON - dt.timedelta(1)},
        ValueError,
        "ends before it starts",
    ),
    "an unknown policy": (
        {"overlap": "maybe"},
        ValueError,
        "overlap is 'skip', 'queue_one', .*'allow'",
    ),
    "an unknown DST policy": (
        {"dst": "x"},
        ValueError,
        "dst is 'once', 'skip' or 'twice', not 'x'",
    ),
    "an unknown catch-up": ({"catch_up": "x"}, ValueError, "catch_up is .*'window', not 'x'"),
    "a policy without its limit": (
        {"catch_up": "at_most"},
        ValueError,
        "catch_up='at_most' needs catch_up_limit, a number of jobs",
    ),
    "a limit that is no number": ({"catch_up_limit": "3"}, TypeError, "catch_up_limit is a number"),
    "an endless limit": (
        {"catch_up": "window", "catch_up_limit": float("inf")},
        ValueError,
        "finite",
    ),
    "half a job": ({"overlap_limit": 1.5}, TypeError, "overlap_limit is a whole number"),
    "no job": ({"overlap": "allow", "overlap_limit": 0}, ValueError, "overlap_limit: "),
    "a limit of no policy": (
        {"overlap_limit": 3},
        ValueError,
        "overlap_limit is for overlap='queue_all' and overlap='allow', and overlap is 'skip'",
    ),
    "jobs to catch up with, without a policy": (
        {"catch_up_limit": 3},
        ValueError,
        "catch_up_limit is for catch_up='at_most' and catch_up='window', and catch_up is 'latest'",
    ),
    "a window of no length": (
        {"catch_up": "window"},
        ValueError,
        "catch_up='window' needs catch_up_limit, seconds",
    ),
    "a zone that is an object": ({"timezone": PARIS}, TypeError, "text such as 'Europe/Paris'"),
    "a priority that is true": ({"priority": True}, TypeError, "priority is a whole number"),
    "a priority out of range": ({"priority": 101}, ValueError, "priority: "),
    "a negative jitter": ({"jitter_seconds": -1}, ValueError, "jitter_seconds: "),
    "a jitter that is none": ({"jitter_seconds": float("nan")}, ValueError, "jitter_seconds: "),
    "a jitter of None": ({"jitter_seconds": None}, TypeError, "jitter_seconds is a number"),
    "a date to exclude": ({"excluded_dates": NOON.date()}, TypeError, "is a list of dates"),
    "excluded text": ({"excluded_dates": "2026-12-25"}, TypeError, "excluded_dates is a list of"),
    "excluded texts": ({"excluded_dates": ["2026-12-25"]}, TypeError, "are dates, not '2026-1"),
    "an excluded moment": ({"excluded_dates": [NOON]}, TypeError, "are dates, not datetime"),
    "too many excluded dates": (
        {"excluded_dates": {NOON.date() + dt.timedelta(day) for day in range(367)}},
        ValueError,
        "excluded_dates: at most 366 dates",
    ),
    "no jobs at all": ({"max_jobs": 0}, ValueError, "max_jobs: "),
    "half of the jobs": ({"max_jobs": 0.5}, TypeError, "max_jobs is a whole number"),
    "too many dead": ({"pause_after_dead": 101}, ValueError, "pause_after_dead: "),
    "enabled by text": ({"enabled": "no"}, TypeError, "enabled is True or False"),
    "a queue of no name": ({"queue": "a b"}, ValueError, "queue: Use letters"),
    "a queue object": ({"queue": 5}, TypeError, "queue is text"),
    "a payload in pairs": ({"payload": [("a", 1)]}, TypeError, "payload is a dict"),
    "a payload with odd keys": ({"payload": {1: 2}}, ValueError, "key 1 is an int, not a string"),
    "a payload that is not JSON": ({"payload": {"at": NOON}}, ValueError, "payload.at: a datetime"),
    "a payload that does not fit": ({"payload": {"x": 1}}, ValueError, "app.noop.*; got x"),
    "a function": ({"job_type": mark}, TypeError, "job_type is a job type or its name"),
    "options of one request": (
        {"job_type": noop.using(queue="bulk")},
        ValueError,
        "give queue and priority to the schedule itself",
    ),
    "a job type of no name": ({"job_type": ""}, ValueError, "job_type: This field cannot be"),
    "a job type with NUL": ({"job_type": "a\x00"}, ValueError, "job_type: text with a NUL"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_schedule_that_can_never_fire_is_refused_at_its_declaration(what: str) -> None:
    options, kind, problem = BAD[what]
    with pytest.raises(kind, match="(?s)^schedule 'nightly': .*" + problem) as caught:
        declare(**options)
    assert type(caught.value) is kind
    assert not registry.schedules()


@pytest.mark.parametrize(
    "name, kind", [("", ValueError), ("x" * 201, ValueError), ("a\x00", ValueError), (5, TypeError)]
)
def test_an_invalid_name_is_refused(name: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="name"):
        declare(name)


# Synchronise


@pytest.mark.django_db
@pytest.mark.parametrize("prefix", ["TZ=UTC", "CRON_TZ=UTC", "tz = 'UTC'"])
def test_a_zone_in_an_expression_is_refused_without_a_word_of_a_form(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"give UTC as its time zone$"):
        schedule("zoned", noop, cron=f"{prefix} 0 3 * * *")
    assert "zoned" not in registry.schedules()


@pytest.mark.django_db
def test_declared_schedules_are_in_the_table_after_migrate() -> None:
    declare("every hour", summarise, payload={"day": "x"}, queue="bulk", priority=3)
    call_command("migrate", verbosity=0)
    row = Schedule.objects.get()
    assert row.declared
    assert (row.name, row.job_type, row.payload) == ("every hour", "app.summarise", {"day": "x"})
    assert (row.every, row.queue, row.priority, row.enabled) == (3600.0, "bulk", 3, True)
    look()
    row.refresh_from_db()
    assert row.next_due_at is not None


@pytest.mark.django_db
def test_a_declared_schedule_without_a_row_asks_for_migrate() -> None:
    declare("nightly")
    problem = "^no schedule is named 'nightly'; the code declares it: run manage.py migrate$"
    with pytest.raises(OperationRefused, match=problem):
        run_now("nightly")
    with pytest.raises(CommandError, match=problem):
        call_command("jobschedule", "run", "nightly")


@pytest.mark.django_db
def test_an_unchanged_schedule_is_not_written(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    declare(
        job_type=add,
        payload={"first": [1, 2], "second": 1e20},
        starts_at=NOON.astimezone(PARIS),
        jitter_seconds=5,
    )
    table()
    look()
    Schedule.objects.update(payload={"first": [1, 2], "second": 1e20})
    before = Schedule.objects.extra(select={"xmin": "xmin::text"}).values().get()
    registry._schedules.clear()
    declare(
        job_type=add, payload={"first": (1, 2), "second": 1e20}, starts_at=NOON, jitter_seconds=5
    )
    table()
    assert Schedule.objects.extra(select={"xmin": "xmin::text"}).values().get() == before


@pytest.mark.django_db
@pytest.mark.parametrize(
    "before, after",
    [(1, True), (False, 0), ([1], [True]), ({"a": [1, 0]}, {"a": [1, False]}), (1, 2), (1, "1")],
)
def test_a_changed_payload_is_written_also_if_python_takes_it_for_equal(
    before: Any, after: Any
) -> None:
    for first in (before, after):
        registry._schedules.clear()
        declare(job_type=add, payload={"first": first, "second": 0})
        table()
    assert json.dumps(Schedule.objects.get().payload["first"]) == json.dumps(after)


def test_a_schedule_that_is_declared_with_one_and_with_true_is_declared_twice() -> None:
    for first in (1, True):
        declare(job_type=add, payload={"first": first, "second": 0})
    assert registry.schedule_clashes() == ["nightly"]


@pytest.mark.django_db
def test_true_is_no_interval_of_a_row() -> None:
    row = Schedule(name="each second", job_type="app.noop", every=True)
    for refuse in (row.full_clean, row.save):
        with pytest.raises(ValidationError, match="a number of seconds, not bool"):
            refuse()
    with pytest.raises(ValueError, match="a number of seconds, not bool"):
        declare(every=True)
    assert not Schedule.objects.exists()


@pytest.mark.django_db
def test_a_changed_declaration_updates_the_row_and_marks_it_stale() -> None:
    declare()
    table()
    look()
    registry._schedules.clear()
    declare(queue="bulk")
    assert not table()["nightly"].stale
    registry._schedules.clear()
    declare(every=60)
    row = table()["nightly"]
    assert (row.every, row.queue, row.stale) == (60.0, "", True)


@pytest.mark.django_db
def test_excluded_dates_and_the_number_of_jobs_are_declared() -> None:
    christmas, day_after = dt.date(2026, 12, 25), dt.date(2026, 12, 26)
    declare(excluded_dates=(day_after, christmas, day_after), max_jobs=5)
    row = table()["nightly"]
    assert (row.excluded_dates, row.max_jobs) == ([christmas, day_after], 5)
    run_sql("UPDATE django_jobs_schedule SET stale = false, jobs_made = 3")
    row = table()["nightly"]
    assert (row.stale, row.jobs_made) == (False, 3)
    registry.forget_schedule("nightly")
    declare(excluded_dates=[christmas], max_jobs=9)
    row = table()["nightly"]
    assert (row.stale, row.excluded_dates, row.max_jobs) == (True, [christmas], 9)
    assert row.jobs_made == 3


@pytest.mark.django_db
def test_a_schedule_no_longer_declared_is_disabled_until_declared_again() -> None:
    declare()
    declare("other")
    table()
    registry.forget_schedule("nightly")
    rows = table()
    assert (rows["nightly"].enabled, rows["other"].enabled) == (False, True)
    assert rows["nightly"].stale
    declare()
    assert table()["nightly"].enabled
    declare("off", enabled=False)
    assert not table()["off"].enabled


@pytest.mark.django_db
def test_the_pause_of_an_operator_survives_a_deployment() -> None:
    declare()
    schedule_operations.pause([table()["nightly"].pk], reason="too loud")
    registry._schedules.clear()
    declare(every=60)
    row = table()["nightly"]
    assert row.paused_at is not None
    assert (row.paused_reason, row.every) == ("too loud", 60.0)


@pytest.mark.django_db
def test_a_row_of_the_same_name_is_taken_over_and_others_are_left() -> None:
    mine = due_schedule(name="nightly", job_type="app.add", queue="bulk")
    due_schedule(name="by hand")
    declare()
    rows = table()
    assert (rows["nightly"].pk, rows["nightly"].declared) == (mine.pk, True)
    assert (rows["nightly"].job_type, rows["nightly"].queue) == ("app.noop", "")
    assert (rows["by hand"].declared, rows["by hand"].enabled) == (False, True)


@pytest.mark.django_db
def test_a_deployment_clears_the_error_of_a_schedule() -> None:
    declare()
    table()
    Schedule.objects.update(error="broken", stale=False)
    row = table()["nightly"]
    assert (row.error, row.stale) == ("", True)


@pytest.mark.django_db
def test_migrate_does_not_read_or_lock_undeclared_schedules(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    due_schedule(name="by hand")
    declare()
    table()
    # The tables, the columns in two, a savepoint, the insert, the rows, its release.
    with django_assert_num_queries(7):
        synchronise("default")


@pytest.mark.django_db(transaction=True)
def test_concurrent_deployments_do_not_conflict() -> None:
    for number in range(20):
        declare(f"s{number}")
    in_threads(5, lambda number: synchronise("default"))
    assert Schedule.objects.filter(declared=True).count() == 20


@pytest.mark.django_db(transaction=True)
def test_a_deployment_keeps_a_pause_for_whose_commit_it_waits() -> None:
    declare()
    row = table()["nightly"]
    registry.forget_schedule("nightly")
    declare(priority=3)

    inserted, paused = threading.Event(), threading.Event()

    def stop_after_insert(execute: Any, sql: str, *given: Any) -> Any:
        result = execute(sql, *given)
        if sql.startswith("INSERT"):
            inserted.set()
            assert paused.wait(PATIENCE)
        return result

    def deploy() -> None:
        try:
            with connection.execute_wrapper(stop_after_insert):
                synchronise("default")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        deployment = threads.submit(deploy)
        assert inserted.wait(PATIENCE)
        with transaction.atomic():
            schedule_operations.pause([row.pk], reason="too loud")
            paused.set()
            wait_for_a_blocked_session()
        deployment.result()
    row.refresh_from_db()
    assert (row.priority, row.paused_reason) == (3, "too loud")
    assert row.paused_at is not None


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_of_a_deployment() -> None:
    declare()
    with listening() as notified:
        synchronise("default")
        assert notified() == [":schedules"]


@pytest.mark.django_db
def test_without_the_table_nothing_is_written() -> None:
    declare()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_jobs_schedule RENAME TO elsewhere")
    with CaptureQueriesContext(connection) as asked:
        synchronise("default")
    written = [one["sql"] for one in asked if re.match("INSERT|UPDATE|DELETE", one["sql"])]
    assert written == []


@pytest.mark.django_db
def test_migrating_another_database_writes_nothing(
    settings: Settings, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    declare()
    settings.DJANGO_JOBS = {"DATABASE": "elsewhere"}
    with django_assert_num_queries(0):
        take_over(using="default")
    assert not Schedule.objects.using("default").filter(name="nightly").exists()


# The request


@pytest.mark.django_db
def test_the_jobs_have_the_options_of_the_schedule_else_of_their_type() -> None:
    new, payload, gates = request_of(due_schedule(job_type="app.add", payload={"first": 3}))
    assert (new.queue, new.priority, new.job_type, payload) == (
        *("default", 0, "app.add", '{"first":3}'),
    )
    assert gates is None
    new, _, _ = request_of(due_schedule(name="b", queue="bulk", priority=7))
    assert (new.queue, new.priority, new.max_attempts) == ("bulk", 7, 2)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "fields, refusal",
    [
        ({"job_type": "elsewhere.only"}, UnknownJobType),
        ({"queue": "nowhere"}, UnknownQueue),
        ({"payload": [1]}, PayloadError),
        ({"payload": {"x": 1}}, PayloadError),
    ],
)
def test_an_invalid_request_is_refused(fields: dict[str, Any], refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        request_of(due_schedule(**fields))


@pytest.mark.django_db
def test_many_requests_ask_a_queue_once_whether_it_is_full(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    rows = [due_schedule(name=str(number), queue="bulk") for number in range(5)]
    Queue.objects.filter(name="bulk").update(max_backlog=1)
    requests = Requests()
    with django_assert_num_queries(2):
        assert len({requests.of(row) for row in rows}) == 1
    noop.using(queue="bulk").enqueue()
    requests = Requests()
    with django_assert_num_queries(2):
        for row in rows:
            with pytest.raises(QueueFull):
                requests.of(row)


@pytest.mark.django_db
def test_schedules_of_another_project_in_the_same_table_are_not_changed() -> None:
    Schedule.objects.create(name="theirs", job_type="theirs.tidy", every=60, declared=True)
    Schedule.objects.create(name="ours", job_type="app.gone", every=60, declared=True)
    rows = table()
    assert rows["theirs"].enabled
    assert not rows["ours"].enabled


def test_a_start_before_the_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="it starts before 1970"):
        declare(starts_at=dt.datetime(1, 1, 1, tzinfo=dt.UTC))


@pytest.mark.django_db
@pytest.mark.parametrize("fold", [0, 1])
def test_a_bound_in_a_repeated_hour_is_the_instant_that_it_names(fold: int) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    half_past = dt.datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=berlin)
    declare(
        "from then on", every=None, cron="50 2 * * *", timezone="Europe/Berlin", starts_at=half_past
    )
    starts_at = half_past.astimezone(dt.UTC)
    assert table()["from then on"].starts_at == starts_at
    Schedule.objects.update(stale=False, next_due_at=starts_at)
    assert not table()["from then on"].stale, "not written again: nothing has changed"
    row = table()["from then on"]
    row.starts_at = half_past
    row.save()
    assert not row.stale
    ends_at = starts_at + dt.timedelta(minutes=10)
    with pytest.raises(ValueError, match="never comes due between its start and its end"):
        declare(
            "never",
            every=None,
            cron="50 2 * * *",
            timezone="Europe/Berlin",
            starts_at=half_past,
            ends_at=ends_at,
        )
