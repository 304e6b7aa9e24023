"""A trigger of the project's that returns NULL drops new rows: that is said, and nothing is half
written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from django_jobs import EnqueueError, chain, enqueue_many, group
from django_jobs.api import sql_defaults
from django_jobs.api.schedules import request_of
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.policies import TickState
from django_jobs.lifecycle import backlog
from django_jobs.lifecycle.bulk_insert import RowsDropped
from django_jobs.lifecycle.operations import schedules as operations
from django_jobs.lifecycle.schedules.firing import NewTick, write_ticks
from django_jobs.lifecycle.settling import Ending
from django_jobs.lifecycle.settling_rows import note_triggers, settle_with_fallback
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Backfill, Job, Queue, Resource, Tick, UniqueKey, WorkflowRun
from django_jobs.testing import run_jobs
from tests.app.database_jobs import write_once
from tests.app.gate_jobs import charge_account, refund_payment
from tests.app.jobs import add, noop
from tests.app.kit_jobs import fan_out
from tests.app.models import Effect
from tests.factories import due_schedule, enqueue_and_claim, look, run_sql, settle_one
from tests.triggers import dropped

pytestmark = pytest.mark.django_db(transaction=True)

OF_A_TRIGGER = r"a trigger \(drop_row\) of django_jobs_\w+ dropped \d+ of the new rows"

ONE: dict[str, Callable[[], Any]] = {
    "plain": lambda: add.enqueue(2),
    "delayed": lambda: add.using(delay=60).enqueue(2),
    "with a maximum age": lambda: replace(add, max_age=60).enqueue(2),
    "with a key": lambda: add.using(idempotency_key="k").enqueue(2),
    "unique": lambda: add.using(idempotency_key="k", unique_for=60).enqueue(2),
    "replacing": lambda: add.using(idempotency_key="k", on_duplicate="replace").enqueue(2),
    "unique and replacing": lambda: add.using(
        idempotency_key="k", unique_for=60, on_duplicate="replace"
    ).enqueue(2),
    "with a key of its gate": lambda: charge_account.enqueue(2),
    "with a resource": lambda: refund_payment.enqueue(2),
    "with a resource and a key": lambda: refund_payment.using(idempotency_key="k").enqueue(2),
}
MANY: dict[str, Callable[[], Any]] = {
    "by COPY": lambda: enqueue_many(add, numbers(3)),
    "of many statements": lambda: enqueue_many(add, numbers(5_010)[::-1]),
    "by INSERT": lambda: enqueue_many(add, numbers(3), idempotency_keys=keys(3)),
    "partly with keys": lambda: enqueue_many(add, numbers(3), idempotency_keys=["a", None, "c"]),
    "with keys by COPY": lambda: enqueue_many(add, numbers(200), idempotency_keys=keys(200)),
    "unique": lambda: enqueue_many(add.using(unique_for=60), numbers(3), idempotency_keys=keys(3)),
    "with gates": lambda: enqueue_many(
        charge_account, [{"account_id": one["first"], "amount": 2} for one in numbers(3)]
    ),
    "a chain": lambda: chain(add.step(first=1), add.step(first=2)).start(),
    "a group": lambda: group([add.step(first=1), add.step(first=2), add.step(first=3)]).start(),
}


def numbers(count: int) -> list[dict[str, int]]:
    return [{"first": number} for number in range(1, count + 1)]


def keys(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


@pytest.fixture(autouse=True)
def _resources() -> None:
    Resource.objects.create(name="stripe")


def is_empty() -> bool:
    return not any(model.objects.exists() for model in (Job, UniqueKey, WorkflowRun, Tick))


@pytest.mark.parametrize("enqueue", [*ONE.values(), *MANY.values()], ids=[*ONE, *MANY])
def test_all_dropped_rows_are_an_error_and_nothing_is_written(enqueue: Callable[[], Any]) -> None:
    with dropped():
        with pytest.raises(EnqueueError, match=OF_A_TRIGGER):
            enqueue()
        assert is_empty()
        with transaction.atomic():  # which can go on
            with pytest.raises(EnqueueError, match=OF_A_TRIGGER):
                enqueue()
            run_sql("SELECT 1")
    assert is_empty()
    enqueue()


@pytest.mark.parametrize("enqueue", MANY.values(), ids=list(MANY))
def test_of_several_rows_one_that_is_dropped_takes_all_with_it(enqueue: Callable[[], Any]) -> None:
    when = "(coalesce(NEW.payload ->> 'first', NEW.payload ->> 'account_id'))::integer = 2"
    with dropped(when):
        with pytest.raises(EnqueueError, match="dropped 1 of the new rows"):
            enqueue()
        # An earlier statement of 5,000 rows has been committed.
        assert Job.objects.count() in (0, 5_000)
        assert not UniqueKey.objects.exists()
        assert not WorkflowRun.objects.exists()


def test_a_job_that_runs_keeps_its_key_if_its_successor_is_dropped() -> None:
    last = add.using(idempotency_key="k", on_duplicate="replace")
    held = enqueue_and_claim(add, 1, idempotency_key="k")
    with dropped(), pytest.raises(EnqueueError, match=OF_A_TRIGGER):
        last.enqueue(2)
    assert Job.objects.get().idempotency_key == "k"
    with dropped(), transaction.atomic():
        noted = Queue.objects.create(name="noted")
        with pytest.raises(EnqueueError, match=OF_A_TRIGGER):
            last.enqueue(2)
    assert Queue.objects.filter(pk=noted.pk).exists()
    assert Job.objects.get().idempotency_key == "k"
    settle_one(held, Succeeded())


def test_a_full_queue_drops_no_other_job_for_one_that_a_trigger_drops() -> None:
    Queue.objects.filter(name="default").update(max_backlog=1, on_full="drop_lowest")
    Queue.objects.forget_recent()
    kept = noop.enqueue()
    with dropped(), pytest.raises(EnqueueError, match=OF_A_TRIGGER):
        add.using(priority=9).enqueue(2)
    kept.refresh_from_db()
    assert kept.status == "ready"
    assert backlog.read_backlog("default") is not None


@pytest.mark.parametrize("table", ["django_jobs_workflowrun", "django_jobs_dependency"])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_run_of_a_workflow_starts_whole_or_not_at_all(table: str, key: str | None) -> None:
    other = chain(add.step(first=1), add.step(first=2)).start()
    with dropped(table=table), pytest.raises(EnqueueError, match=OF_A_TRIGGER):
        chain(add.step(first=1), add.step(first=2)).using(idempotency_key=key).start()
    assert list(WorkflowRun.objects.all()) == [other]
    assert Job.objects.count() == 2


def test_a_due_time_whose_job_is_dropped_stays_due_and_stops_no_other_schedule() -> None:
    schedule = due_schedule(name="dropped", job_type="app.add", payload={"first": 2})
    due_schedule(name="other")
    due_at = schedule.next_due_at
    with dropped("NEW.job_type = 'app.add'"), pytest.raises(RowsDropped, match=OF_A_TRIGGER):
        look()
    schedule.refresh_from_db()
    assert (schedule.next_due_at, schedule.error) == (due_at, "")
    assert [tick.schedule.name for tick in Tick.objects.select_related("schedule")] == ["other"]
    Scheduling().look()
    assert set(Job.objects.values_list("job_type", flat=True)) == {"app.add", "app.noop"}


def test_a_due_time_whose_tick_is_dropped_stays_due_and_stops_no_other_schedule() -> None:
    schedule = due_schedule(name="dropped", job_type="app.add", payload={"first": 2})
    due_schedule(name="other")
    due_at = schedule.next_due_at
    with (
        dropped(f"NEW.schedule_id = {schedule.pk}", table="django_jobs_tick"),
        pytest.raises(RowsDropped, match=OF_A_TRIGGER),
    ):
        look()
    schedule.refresh_from_db()
    assert (schedule.next_due_at, schedule.error) == (due_at, "")
    assert [tick.schedule.name for tick in Tick.objects.select_related("schedule")] == ["other"]
    assert [job.job_type for job in Job.objects.all()] == ["app.noop"]
    Scheduling().look()
    assert set(Job.objects.values_list("job_type", flat=True)) == {"app.add", "app.noop"}


def test_a_tick_that_is_there_is_not_missing_where_a_trigger_drops_others() -> None:
    schedule = due_schedule()
    look()
    due_at = Tick.objects.get().due_at
    with dropped(table="django_jobs_tick"):
        assert write_ticks([NewTick(schedule=schedule.pk, due=due_at)]) == []


def test_a_backfill_of_a_due_time_that_was_skipped_is_not_made_in_silence() -> None:
    schedule = due_schedule(7_200)
    at = schedule.next_due_at
    assert at is not None
    write_ticks([NewTick(schedule=schedule.pk, due=at, outcome=TickState.SKIPPED_LATE)])
    with dropped(table="django_jobs_tick"), pytest.raises(RowsDropped, match=OF_A_TRIGGER):
        operations.backfill(schedule, at, at + timedelta(minutes=1), request_of)
    assert operations.backfill(schedule, at, at + timedelta(minutes=1), request_of).job_count == 1


@pytest.mark.parametrize("table", ["django_jobs_tick", "django_jobs_job_live"])
def test_a_person_is_told_that_ticks_and_jobs_are_dropped(table: str) -> None:
    schedule = due_schedule(7_200)
    hour = timedelta(hours=1)
    with dropped(table=table):
        with pytest.raises(RowsDropped, match=OF_A_TRIGGER):
            operations.run_now([schedule.pk], request_of)
        with pytest.raises(RowsDropped, match=OF_A_TRIGGER):
            operations.backfill(
                schedule, schedule.created_at - hour, schedule.created_at, request_of
            )
    assert is_empty()
    assert not Backfill.objects.exists()


ENDS: dict[str, tuple[str, str]] = {
    "history": ("django_jobs_job_history", "true"),
    "one day of the history": ("{}", "true"),
    "all jobs, once they have ended": ("django_jobs_job", "NEW.status = 'succeeded'"),
    "runs": ("django_jobs_run", "true"),
}


@pytest.fixture(params=ENDS.values(), ids=list(ENDS))
def dropped_ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """A trigger drops what a settle moves or inserts."""
    table, when = request.param
    ((today,),) = run_sql(
        "SELECT tableoid::regclass::text FROM django_jobs_job_history WHERE id = %s",
        [ended_job()],
    )
    with dropped(when, table.format(today)):
        yield


def ended_job() -> int:
    held = enqueue_and_claim(noop)
    settle_one(held, Succeeded())
    return held.id


def test_a_job_whose_end_a_trigger_drops_ends_dead_with_the_reason(dropped_ends: None) -> None:
    job = add.enqueue(2)
    run_jobs()
    job.refresh_from_db()
    assert job.status == "dead"
    assert re.search(r"its end could not be written: .*a trigger \(drop_row\)", job.reason)


def test_a_trigger_that_drops_ends_from_now_on_is_logged_once_and_then_undone(
    dropped_ends: None, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = enqueue_and_claim(add, 1), enqueue_and_claim(add, 2)
    settle_with_fallback([Ending(first, Succeeded())])
    assert "event=unsettleable" in caplog.text
    assert "a trigger (drop_row)" in caplog.text
    settle_with_fallback([Ending(second, Succeeded())])
    assert Job.objects.get(pk=second.id).status == "dead"


def test_an_exactly_once_job_whose_end_a_trigger_drops_fails(dropped_ends: None) -> None:
    write_once.using(max_attempts=1).enqueue()
    run_jobs()
    assert Job.objects.latest("pk").status == "dead"
    assert not Effect.objects.exists()


def test_a_lost_lease_is_no_dropped_row_where_there_is_a_trigger() -> None:
    held = enqueue_and_claim(add, 1)
    Job.objects.filter(pk=held.id).update(attempt=7)
    with dropped("NEW.job_type = 'other'", table="django_jobs_job_history"):
        note_triggers()
        (settled,) = settle_with_fallback([Ending(held, Succeeded())])
    assert settled.decision is None
    assert Job.objects.get().status == "running"


UNIQUE = ", idempotency_key => 'k', unique_for => '1 h'"


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("django_jobs_job_live", ""),
        ("django_jobs_job_live", ", idempotency_key => 'k'"),
        ("django_jobs_job_live", UNIQUE),
        ("django_jobs_uniquekey", UNIQUE),
    ],
)
def test_the_function_of_sql_says_it_in_the_same_words(table: str, options: str) -> None:
    sql_defaults.synchronise("default")
    statement = f"SELECT django_jobs_enqueue('app.noop'{options})"
    with dropped(table=table):
        with pytest.raises(DatabaseError, match=OF_A_TRIGGER) as refused:
            run_sql(statement)
        assert refused.value.__cause__.sqlstate == "09000"
        assert is_empty()
        if options == UNIQUE:
            unique = noop.using(idempotency_key="k", unique_for=60)
            for on_duplicate in ("return", "replace"):
                with pytest.raises(EnqueueError, match=OF_A_TRIGGER):
                    unique.using(on_duplicate=on_duplicate).enqueue()
    run_sql(statement)
    assert Job.objects.count() == 1


def test_a_spawn_whose_children_are_dropped_fails_the_attempt() -> None:
    fan_out.using(max_attempts=1).enqueue(3)
    with dropped("NEW.step IS NOT NULL"):
        (run,) = run_jobs()
    assert (run.outcome, run.error_type) == ("failed", f"{RowsDropped.__module__}.RowsDropped")
    assert Job.objects.count() == 1
    assert not WorkflowRun.objects.exists()
