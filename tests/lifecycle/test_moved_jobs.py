"""An operation that meets a job on its way to the history is repeated, and answers truthfully."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import transaction

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import backlog
from django_jobs.lifecycle.editing import edits
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.operations import OperationResult, bulk
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations.dead_letters import dismiss
from django_jobs.lifecycle.operations.workflows import skip
from django_jobs.lifecycle.reaping import reap
from django_jobs.lifecycle.settling import Ending, give_back, settle
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.models import Job, Queue
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    in_threads,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.patience import PATIENCE
from tests.worker.processes import until
from tests.workflows import start_graph, states

pytestmark = pytest.mark.django_db(transaction=True)

KEY = 4711
WAITS_FOR_A_ROW = """
SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'transactionid'
"""
WAITS_AT_THE_DOOR = f"""
SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = {KEY} AND NOT granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

# A statement of this role waits between its snapshot and the lock of the row. The grants come last:
# an autovacuum that waits for their rows of pg_class holds its table, for which ALTER TABLE waits.
VISITOR = """
CREATE ROLE {name};
ALTER TABLE django_jobs_job ENABLE ROW LEVEL SECURITY;
ALTER TABLE django_jobs_job_live ENABLE ROW LEVEL SECURITY;
CREATE FUNCTION {name}_waits(bigint) RETURNS boolean LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN true; END';
CREATE POLICY {name} ON django_jobs_job TO {name} USING ({name}_waits(id));
CREATE POLICY {name} ON django_jobs_job_live TO {name} USING ({name}_waits(id));
GRANT ALL ON ALL TABLES IN SCHEMA public TO {name};
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}
"""
NO_VISITOR = """
ALTER TABLE django_jobs_job DISABLE ROW LEVEL SECURITY;
ALTER TABLE django_jobs_job_live DISABLE ROW LEVEL SECURITY;
DROP OWNED BY {name};
DROP FUNCTION {name}_waits(bigint);
DROP ROLE {name}
"""


@pytest.fixture
def visitor() -> Iterator[str]:
    name = f"visitor_{uuid.uuid4().hex[:8]}"
    run_sql(VISITOR.format(name=name))
    yield name
    run_sql(NO_VISITOR.format(name=name))


def waiting_for(move: Callable[[], Any], operation: Callable[[], Any], *, nested: bool) -> Any:
    """What ``operation`` returns that waits for the row while ``move`` is not committed. With
    ``nested`` its caller has a transaction open."""
    moved = threading.Event()

    def act(number: int) -> Any:
        if number == 0:
            with transaction.atomic():
                move()
                moved.set()
                until(lambda: run_sql(WAITS_FOR_A_ROW), what="the operation waits")
            return None
        assert moved.wait(PATIENCE)
        with transaction.atomic() if nested else nullcontext():
            return operation()

    return in_threads(2, act)[1]


def meeting(
    visitor: str, move: Callable[[], Any], operation: Callable[[], Any], *, nested: bool
) -> Any:
    """What ``operation`` returns that has seen the row where it was before ``move``."""
    closed = threading.Event()

    def act(number: int) -> Any:
        if number == 0:
            run_sql("SELECT pg_advisory_lock(%s)", [KEY])
            closed.set()
            until(lambda: run_sql(WAITS_AT_THE_DOOR), what="the operation waits")
            move()
            run_sql("SELECT pg_advisory_unlock(%s)", [KEY])
            return None
        assert closed.wait(PATIENCE)
        run_sql(f"SET ROLE {visitor}")
        with transaction.atomic() if nested else nullcontext():
            return operation()

    return in_threads(2, act)[1]


def never(_: object) -> Any:
    raise AssertionError("a job that has ended is not looked at")


OPERATIONS: dict[str, Callable[[int], OperationResult]] = {
    "cancel": lambda id_: job_operations.cancel([id_]),
    "reprioritize": lambda id_: job_operations.reprioritize([id_], 5),
    "run_now": lambda id_: job_operations.run_now([id_]),
    "dismiss": lambda id_: dismiss([id_]),
    "edit": lambda id_: edits.edit(id_, never, check=never),
}
nested_or_not = pytest.mark.parametrize("nested", [False, True], ids=["autocommit", "nested"])


@nested_or_not
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_waited_for_a_settle_says_that_the_job_succeeded(
    name: str, nested: bool
) -> None:
    held = enqueue_and_claim()
    result = waiting_for(
        lambda: settle_one(held, Succeeded()), lambda: OPERATIONS[name](held.id), nested=nested
    )
    assert (result.done, result.refused) == ([], {held.id: "it is succeeded"})


@nested_or_not
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_meets_a_settle_says_that_the_job_succeeded(
    visitor: str, name: str, nested: bool
) -> None:
    held = enqueue_and_claim()
    result = meeting(
        visitor,
        lambda: settle_one(held, Succeeded()),
        lambda: OPERATIONS[name](held.id),
        nested=nested,
    )
    assert (result.done, result.refused) == ([], {held.id: "it is succeeded"})


MEET = {
    "waits": lambda visitor, *both, nested: waiting_for(*both, nested=nested),
    "meets": lambda visitor, *both, nested: meeting(visitor, *both, nested=nested),
}
waits_or_meets = pytest.mark.parametrize("how", MEET)


@nested_or_not
@waits_or_meets
def test_a_replay_that_meets_a_dismissal_says_that_the_job_is_not_dead(
    visitor: str, how: str, nested: bool
) -> None:
    dead = make_dead().pk
    result = MEET[how](
        visitor,
        lambda: dismiss([dead]),
        lambda: job_operations.replay([dead], check=lambda job: None),
        nested=nested,
    )
    assert (result.done, result.refused) == ([], {dead: "it is not dead any more"})
    assert Job.objects.get(pk=dead).status == "cancelled"


@nested_or_not
@waits_or_meets
def test_a_dismissal_that_meets_a_replay_leaves_the_job(
    visitor: str, how: str, nested: bool
) -> None:
    dead = make_dead().pk
    result = MEET[how](
        visitor,
        lambda: job_operations.replay([dead], check=lambda job: None),
        lambda: dismiss([dead]),
        nested=nested,
    )
    assert (result.done, result.refused) == ([], {dead: "it is ready"})


@nested_or_not
def test_a_skip_that_meets_a_settle_says_that_the_step_succeeded(
    visitor: str, nested: bool
) -> None:
    run = start_graph({"a": "", "b": "a"})
    (held,) = claim_ready(register_worker())
    result = meeting(
        visitor,
        lambda: settle_one(held, Succeeded()),
        lambda: skip(run.pk, "a"),
        nested=nested,
    )
    assert (result.done, result.refused) == ([], {run.pk: "step 'a' is succeeded"})
    assert states(run) == {"a": "succeeded", "b": "ready"}


@nested_or_not
@waits_or_meets
def test_a_skip_that_meets_a_cancel_skips_the_cancelled_step(
    visitor: str, how: str, nested: bool
) -> None:
    run = start_graph({"a": "", "b": "a"})
    step = Job.objects.get(step="a").pk
    result = MEET[how](
        visitor,
        lambda: job_operations.cancel([step]),
        lambda: skip(run.pk, "a"),
        nested=nested,
    )
    assert (result.done, result.refused) == ([run.pk], {})
    assert states(run)["b"] == "ready"


@pytest.mark.parametrize("has_begun", [False, True], ids=["counts", "finds"])
def test_a_bulk_chunk_that_meets_a_settle_leaves_the_job(visitor: str, has_begun: bool) -> None:
    held, other = enqueue_and_claim(), noop.enqueue().pk
    operation = bulk.start("cancel", {"queue": "default"})
    if has_begun:
        run_sql("UPDATE django_jobs_bulkoperation SET status = 'running', matched = 2")
    assert meeting(visitor, lambda: settle_one(held, Succeeded()), run_chunk, nested=False) == 1
    operation.refresh_from_db()
    left = {"it matches no longer": 1} if has_begun else {}
    assert (operation.status, operation.done) == ("completed", 1)
    assert {why: entry["count"] for why, entry in operation.reasons.items()} == left
    assert dict(Job.objects.values_list("pk", "status")) == {
        held.id: "succeeded",
        other: "cancelled",
    }


@nested_or_not
@pytest.mark.parametrize("queue", ["default", "emails"])
def test_a_claim_that_meets_a_cancel_takes_the_next_job(
    visitor: str, queue: str, nested: bool
) -> None:
    limited = Queue.objects.get(name=queue).max_concurrency is not None
    assert limited is (queue == "emails")
    worker = register_worker()
    first, second = (noop.using(queue=queue).enqueue() for _ in range(2))
    claimed: list[ClaimedJob] = meeting(
        visitor,
        lambda: job_operations.cancel([first.pk]),
        lambda: claim_ready(worker, queue, limit=1, limited=limited),
        nested=nested,
    )
    assert [job.id for job in claimed] == [second.pk]
    assert Job.objects.get(pk=first.pk).status == "cancelled"


@nested_or_not
def test_a_full_queue_that_meets_a_cancel_of_its_lowest_job_drops_no_other(
    visitor: str, nested: bool
) -> None:
    bulk = noop.using(queue="bulk")
    first, second, lowest = (bulk.enqueue().pk for _ in range(3))
    Queue.objects.filter(name="bulk").update(max_backlog=2, on_full="drop_lowest")
    Queue.objects.forget_recent()
    dropped = meeting(
        visitor,
        lambda: job_operations.cancel([lowest], reason="not needed"),
        lambda: backlog.drop_lowest(bulk.request(), 1),
        nested=nested,
    )
    assert dropped.finished_at == {}
    assert dict(Job.objects.values_list("pk", "reason")) == {
        first: "",
        second: "",
        lowest: "not needed",
    }


@nested_or_not
def test_a_give_back_that_meets_a_settle_gives_nothing_back(visitor: str, nested: bool) -> None:
    held = enqueue_and_claim()
    given = meeting(
        visitor,
        lambda: settle_one(held, Succeeded()),
        lambda: give_back([held.fence]),
        nested=nested,
    )
    assert given == []
    assert Job.objects.get(pk=held.id).status == "succeeded"


@nested_or_not
def test_a_reaper_that_meets_a_late_settle_leaves_the_success(visitor: str, nested: bool) -> None:
    held = enqueue_and_claim(worker=register_worker(lease=-1))
    reaped = meeting(visitor, lambda: settle_one(held, Succeeded()), reap, nested=nested)
    assert reaped == []
    assert Job.objects.get(pk=held.id).status == "succeeded"


def test_a_late_settle_that_meets_the_reaper_writes_nothing(visitor: str) -> None:
    held = enqueue_and_claim(worker=register_worker(lease=-1))
    job_operations.cancel([held.id])
    (settled,) = meeting(
        visitor,
        reap,
        lambda: settle([Ending(held, Succeeded())]),
        nested=False,
    )
    assert settled.decision is None
    assert Job.objects.get(pk=held.id).status == "cancelled"
