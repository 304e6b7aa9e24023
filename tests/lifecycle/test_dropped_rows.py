"""A trigger of the project's that returns NULL drops new rows: that is said, and nothing is half
written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from django_jobs import EnqueueError, chain, enqueue_many, group
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import backlog
from django_jobs.lifecycle.bulk_insert import RowsDropped
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Job, Queue, Resource, Tick, UniqueKey, WorkflowRun
from django_jobs.testing import run_jobs
from tests.app.gate_jobs import charge_account, refund_payment
from tests.app.jobs import add, noop
from tests.app.kit_jobs import fan_out
from tests.factories import due_schedule, enqueue_and_claim, look, run_sql, settle_one
from tests.triggers import dropped

pytestmark = pytest.mark.django_db(transaction=True)

OF_A_TRIGGER = r"a trigger \(drop_row\) of django_jobs_\w+ dropped \d+ of the new rows"
THE_SECOND = "(NEW.payload ->> 'first')::integer % 2 = 0"

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


def test_a_spawn_whose_children_are_dropped_fails_the_attempt() -> None:
    fan_out.using(max_attempts=1).enqueue(3)
    with dropped("NEW.step IS NOT NULL"):
        (run,) = run_jobs()
    assert (run.outcome, run.error_type) == ("failed", f"{RowsDropped.__module__}.RowsDropped")
    assert Job.objects.count() == 1
    assert not WorkflowRun.objects.exists()
