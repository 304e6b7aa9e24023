"""One thing that is locked, refused or unreadable keeps no other waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError
from django.utils import timezone
from pytest_django import Settings

from django_jobs.domain.outcomes import Lost, Outcome
from django_jobs.lifecycle import backlog_samples, reaping
from django_jobs.lifecycle.job_columns import Fence
from django_jobs.lifecycle.operations import bulk, quarantines, workflows
from django_jobs.lifecycle.promoting import peek
from django_jobs.maintenance import retention, schedules
from django_jobs.maintenance.bulk_operations import LOCKED, run_chunk
from django_jobs.maintenance.retention import Retention, prune_dead_letters, rules_in_force
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.maintenance.tasks import Quarantining
from django_jobs.metrics.gauges import read_gauges
from django_jobs.metrics.limits import read_usages
from django_jobs.models import BulkOperation, Job, Quarantine, Queue, Resource, WorkflowRun
from django_jobs.signals import worker_event
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import add, noop, write_effect
from tests.factories import (
    claim_ready,
    due_schedule,
    enqueue_and_claim,
    heard,
    make_dead,
    open_elsewhere,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.test_opening import finish
from tests.lifecycle.test_reaping import expire
from tests.maintenance.test_bulk_operations import run_all
from tests.maintenance.test_retention_workflows import age
from tests.triggers import refused
from tests.workflows import start_graph, states, step

pytestmark = pytest.mark.django_db(transaction=True)
GRAPH = {"a": "", "b": "a"}


@contextmanager
def locked(table: str, where: str, *parameters: Any) -> Iterator[None]:
    """Another session holds these rows. Who waits for them gives up as in a worker, but sooner."""
    run_sql("SET lock_timeout = '2s'")
    with open_elsewhere(f"SELECT 1 FROM {table} WHERE {where} FOR UPDATE", parameters):
        yield
    run_sql("RESET lock_timeout")


@pytest.mark.parametrize(
    ("table", "where"),
    [("django_jobs_workflowrun", "true"), ("django_jobs_job", "step = 'b'")],
    ids=["its run", "the step after it"],
)
def test_a_lost_step_that_cannot_be_settled_yet_delays_no_other_lost_job(
    table: str, where: str
) -> None:
    run = start_graph(GRAPH)
    other = noop.enqueue()
    worker = register_worker()
    claim_ready(worker)
    run_sql("UPDATE django_jobs_job SET crashes = 2 WHERE step = 'a'")
    expire(worker)
    with locked(table, where):
        assert [one.ending.job.id for one in reaping.reap()] == [other.pk]
        assert reaping.reap() == []
    assert len(reaping.reap()) == 1
    assert states(run) == {"a": "dead", "b": "cancelled (failed)"}


def test_lost_steps_of_other_runs_are_settled_beside_a_locked_one() -> None:
    runs = [start_graph(GRAPH) for _ in range(3)]
    worker = register_worker()
    claim_ready(worker)
    run_sql("UPDATE django_jobs_job SET crashes = 2 WHERE step = 'a'")
    expire(worker)
    with locked("django_jobs_workflowrun", "id = %s", runs[0].pk):
        assert len(reaping.reap()) == 2
    assert [states(run)["a"] for run in runs] == ["running", "dead", "dead"]


def test_more_blocked_lost_steps_than_a_batch_hide_no_other_lost_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaping, "BATCH", 2)
    start_graph(dict.fromkeys("abcd", ""))
    noop.enqueue()
    worker = register_worker()
    claim_ready(worker)
    run_sql("UPDATE django_jobs_job SET crashes = 2 WHERE step <> ''")
    expire(worker)
    with locked("django_jobs_workflowrun", "true"):
        assert any(reaping.reap() for _ in range(30))


def test_the_jobs_of_a_dead_process_are_settled_beside_a_locked_run() -> None:
    held = start_graph({"started": "", "waiting": ""})
    others = [noop.enqueue() for _ in range(2)]
    worker = register_worker()
    jobs = claim_ready(worker)
    run_sql("UPDATE django_jobs_job SET crashes = 2, cancel_requested_at = now() WHERE step <> ''")
    lost = {others[0].pk, step(held, "started").pk}
    outcomes: dict[Fence, Outcome] = {
        job.fence: Lost(reason="SIGSEGV") for job in jobs if job.id in lost
    }
    with locked("django_jobs_workflowrun", "true"):
        (settled,) = reaping.recover_process(worker, outcomes, reason="SIGSEGV")
        assert settled.ending.job.id == others[0].pk
        assert {Job.objects.get(pk=other.pk).status for other in others} == {"ready"}
        assert set(states(held).values()) == {"running"}
    reaping.reap()
    assert set(states(held).values()) == {"cancelled"}


def cut_short() -> list[WorkflowRun]:
    runs = [start_graph(GRAPH), start_graph(GRAPH)]
    WorkflowRun.objects.update(cancel_requested_at=timezone.now() - timedelta(seconds=11))
    return runs


def test_a_cancel_that_waits_for_a_run_delays_no_other() -> None:
    held, other = cut_short()
    with locked("django_jobs_workflowrun", "id = %s", held.pk):
        assert [workflows.finish_cancel() for _ in range(2)] == [2, 0]
        assert states(other) == {"a": "cancelled", "b": "cancelled"}
    assert workflows.finish_cancel() == 2
    assert states(held) == {"a": "cancelled", "b": "cancelled"}


def test_a_cancel_that_waits_for_a_step_delays_no_other() -> None:
    held, other = cut_short()
    with locked("django_jobs_job", "workflow_run_id = %s AND step = 'a'", held.pk):
        assert [workflows.finish_cancel() for _ in range(3)] == [1, 2, 0]
        assert states(other) == {"a": "cancelled", "b": "cancelled"}
        assert states(held) == {"a": "ready", "b": "cancelled"}
    assert workflows.finish_cancel() == 1
    held.refresh_from_db()
    assert held.status == "cancelled"


def test_an_operation_puts_off_the_steps_of_a_locked_run() -> None:
    run = start_graph(GRAPH)
    other = noop.enqueue()
    bulk.start("cancel", {"queue": "default"})
    with locked("django_jobs_workflowrun", "id = %s", run.pk):
        run_chunk()
        assert Job.objects.get(pk=other.pk).status == "cancelled"
        assert states(run) == {"a": "ready", "b": "waiting"}
        assert BulkOperation.objects.get().status == "running"
    operation = run_all()
    assert (operation.status, operation.done, operation.left) == ("completed", 3, 0)


def test_an_operation_leaves_the_steps_of_a_run_that_stays_locked() -> None:
    run = start_graph(GRAPH)
    bulk.start("cancel", {"queue": "default"})
    with locked("django_jobs_workflowrun", "id = %s", run.pk):
        operation = run_all()
    assert (operation.status, operation.done, operation.left) == ("completed", 0, 2)
    assert list(operation.reasons) == [LOCKED]


def test_an_operation_that_cannot_be_read_fails_and_the_others_go_on() -> None:
    noop.enqueue()
    bad = bulk.start("cancel", {"queue": "bulk"})
    good = bulk.start("cancel", {"queue": "default"})
    run_sql(
        "UPDATE django_jobs_bulkoperation"
        " SET progress = ('{\"sent\": ' || repeat('9', 5000) || '}')::jsonb WHERE id = %s",
        [bad.pk],
    )
    with heard(worker_event) as events:
        assert run_chunk() == 1
    assert BulkOperation.objects.values_list("status", flat=True).get(pk=good.pk) == "completed"
    ended = BulkOperation.objects.filter(pk=bad.pk).values_list("status", "why").get()
    assert ended[0] == "failed"
    assert "4300 digits" in ended[1]
    assert ("operation_failed", bad.pk) in [
        (event["sender"], event["fields"]["operation"]) for event in events
    ]


def add_expired_key() -> None:
    run_sql(
        "INSERT INTO django_jobs_uniquekey (queue, key, job_type, job_id, expires_at)"
        " VALUES ('default', 'k', 'app.noop', 1, now() - interval '1 day')"
    )


def expired_keys() -> int:
    ((number,),) = run_sql("SELECT count(*) FROM django_jobs_uniquekey")
    return int(number)


def test_retention_passes_over_a_locked_operation() -> None:
    bulk.start("cancel", {"queue": "default"})
    run_chunk()
    run_sql("UPDATE django_jobs_bulkoperation SET finished_at = now() - interval '100 days'")
    add_expired_key()
    with locked("django_jobs_bulkoperation", "true"):
        assert Retention(budget=60).run_once() == 1
        assert expired_keys() == 0
    assert Retention(budget=60).run_once() == 1


def test_retention_passes_over_a_locked_step_and_keeps_its_run() -> None:
    held, other = start_graph(GRAPH), start_graph(GRAPH)
    finish()
    age(10)
    with locked("django_jobs_job", "workflow_run_id = %s AND step = 'a'", held.pk):
        Retention(budget=60).run_once()
        assert not WorkflowRun.objects.filter(pk=other.pk).exists()
        assert states(held) == {"a": "succeeded"}
        held.refresh_from_db()
        assert held.status == "expired"
    Retention(budget=60).run_once()
    assert not WorkflowRun.objects.exists()


def test_a_part_of_retention_that_fails_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: Any, **options: Any) -> int:
        run_sql("SELECT 1 / 0")
        return 0

    add_expired_key()
    run = Retention(budget=60)
    monkeypatch.setattr(retention, "prune_workflows", refused)
    monkeypatch.setattr(retention, "prune", refused)
    for _ in range(4):
        with pytest.raises(DatabaseError):
            run.run_once()
    assert expired_keys() == 0


def test_a_schedule_whose_job_a_trigger_refuses_stops_no_other() -> None:
    for number in range(3):
        due_schedule(name=f"good {number}")
    bad = due_schedule(name="bad", queue="bulk")
    due_schedule(name="better")
    scheduling = Scheduling()
    with refused("NEW.queue = 'bulk'", "INSERT"):
        for _ in range(2):
            with pytest.raises(DatabaseError, match="not on Sundays"):
                scheduling.look()
            assert Job.objects.count() == 4
    scheduling.look()
    assert Job.objects.filter(schedule=bad).count() == 1


def test_more_refused_schedules_than_a_batch_hide_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "BATCH", 2)
    for number in range(4):
        due_schedule(name=f"bad {number}", queue="bulk")
    due_schedule(5.0, name="good")
    scheduling = Scheduling()
    with refused("NEW.queue = 'bulk'", "INSERT"):
        for _ in range(30):
            with suppress(DatabaseError):
                scheduling.look()
        assert Job.objects.exists()


def test_a_schedule_that_waits_for_a_lock_stops_no_other() -> None:
    """Its queue drops a step for the new job, and another session holds the run of this step."""
    Queue.objects.filter(name="bulk").update(max_backlog=1, on_full="drop_lowest")
    start_graph(GRAPH)
    run_sql("UPDATE django_jobs_job SET queue = 'bulk', rank = 1e12 WHERE step = 'a'")
    bad = due_schedule(name="bad", queue="bulk")
    good = due_schedule(name="good")
    scheduling = Scheduling()
    with locked("django_jobs_workflowrun", "true"):
        with pytest.raises(OperationalError):
            scheduling.look()
        assert list(Job.objects.values_list("schedule", flat=True).exclude(schedule=None)) == [
            good.pk
        ]
    scheduling.look()
    assert Job.objects.filter(schedule=bad).count() == 1


def test_a_queue_whose_retention_cannot_be_read_stops_no_other() -> None:
    noop.enqueue()
    run_sql(
        "UPDATE django_jobs_queue"
        " SET retention = ('{\"succeeded\": ' || repeat('9', 5000) || '}')::jsonb"
        " WHERE name = 'bulk'"
    )
    seen = peek(["bulk", "default"])
    assert (seen.ready, seen.unkept) == ({"default"}, frozenset())
    assert rules_in_force()["bulk"]["succeeded"] is None, "an error must not delete"
    assert backlog_samples.past("bulk")["bulk"].leaves_runs
    for _ in range(2):  # taken, and stored
        assert {row["queue"] for row in read_gauges()["queues"]} >= {"bulk", "default"}


def test_a_limit_of_dead_jobs_that_cannot_be_kept_stops_no_other() -> None:
    Queue.objects.filter(name__in=["bulk", "default"]).update(retention={"dead": {"number": 1}})
    for queue in ("bulk", "default"):
        for _ in range(2):
            make_dead(queue=queue)
    with refused("OLD.queue = 'bulk'", "DELETE"):
        for _ in range(30):
            with suppress(DatabaseError):
                prune_dead_letters(budget=60)
    assert Job.objects.filter(queue="bulk").count() == 2
    assert Job.objects.filter(queue="default").count() == 1


def test_a_quarantine_that_waits_for_a_lock_stops_no_other(settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "QUARANTINE": {"crashes": 1, "seconds": 3600}}
    noop.enqueue()
    quarantines.quarantine("app.noop", seconds=0)
    for held in (enqueue_and_claim(add, 1), enqueue_and_claim(write_effect, "x")):
        settle_one(held, Lost(reason="SIGSEGV", alone=True))
    blocked, other = quarantines.crashes(3600)
    quarantines.quarantine(blocked, seconds=0)
    Quarantine.objects.filter(job_type=blocked).update(lifted_at="2026-01-01T00:00:00Z")
    task = Quarantining()
    with locked("django_jobs_quarantine", "job_type = %s", blocked):
        for _ in range(20):
            with suppress(OperationalError):
                task.run_once()
            if other in quarantines.in_force():
                break
        else:
            pytest.fail("the other is not quarantined")
        with suppress(OperationalError):
            task.run_once()
        assert Job.objects.get(job_type="app.noop").status == "blocked"


@pytest.mark.parametrize("resources", ['{"stripe": 1}', "7"])
def test_a_job_whose_resources_were_written_by_hand_leaves_the_counts_of_others(
    resources: str,
) -> None:
    Resource.objects.create(name="stripe", max_concurrency=5)
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET resources = %s::jsonb", [resources])
    refund_payment.enqueue(2)
    assert read_usages().resources["stripe"].waiting == 1
    assert any(row["resource"] == "stripe" for row in read_gauges()["resources"])
