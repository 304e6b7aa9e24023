"""What a person asks for: carried out, recorded, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction

from django_jobs import OperationRefused, cancel
from django_jobs.api import replay_problem
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import (
    FORCED,
    Failed,
    Lost,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import inspections
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Queue, Run, Worker
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    listening,
    make_user,
    register_worker,
    run_sql,
    settle_one,
)
from tests.moments import moment
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = pytest.mark.django_db


def replay(*ids: int, **options: Any) -> job_operations.OperationResult:
    return job_operations.replay(ids, check=replay_problem, **options)


BLOCKED_BY_US = """
SELECT 1 FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))
"""


def cancel_elsewhere(id_: int) -> job_operations.OperationResult:
    try:
        return job_operations.cancel([id_])
    finally:
        connections.close_all()


def wait_for_a_blocked_session() -> None:
    """Until another session waits for a lock that this one holds."""

    def waits() -> bool:
        run_sql("SELECT pg_stat_clear_snapshot()")  # or a transaction sees one answer for ever
        return bool(run_sql(BLOCKED_BY_US))

    until(waits, what="another session waits")


# Permissions


VERBS: list[tuple[str, Callable[[Any], Any]]] = [
    ("cancel_job", lambda actor: job_operations.cancel([1], actor=actor)),
    ("stop_job", lambda actor: job_operations.stop([1], actor=actor)),
    ("reprioritize_job", lambda actor: job_operations.reprioritize([1], 5, actor=actor)),
    ("run_job", lambda actor: job_operations.run_now([1], actor=actor)),
    ("inspect_job", lambda actor: inspections.ask([1], actor=actor)),
    ("replay_job", lambda actor: replay(1, actor=actor)),
    ("pause_queue", lambda actor: job_operations.pause(["default"], actor=actor)),
    ("pause_queue", lambda actor: job_operations.resume(["default"], actor=actor)),
    ("stop_worker", lambda actor: job_operations.stop_workers([1], actor=actor)),
]


@pytest.mark.parametrize("permission, verb", VERBS)
def test_each_action_requires_exactly_its_permission(
    permission: str, verb: Callable[[Any], Any]
) -> None:
    others = {name for name, _ in VERBS} - {permission}
    with pytest.raises(PermissionDenied, match=f"olga lacks .*{permission}"):
        verb(make_user("view_job", "change_job", "delete_job", *others))
    verb(make_user(permission, name="otto"))
    verb(None)


def test_a_refused_action_changes_nothing() -> None:
    job = noop.enqueue()
    with pytest.raises(PermissionDenied):
        job_operations.cancel([job.pk], actor=make_user())
    assert Job.objects.get().status == "ready"


# Cancel


def test_pending_jobs_are_cancelled_at_once_and_say_by_whom() -> None:
    ready, scheduled = noop.enqueue(), noop.using(delay=100).enqueue()
    report = job_operations.cancel([ready.pk, scheduled.pk], actor=make_user("cancel_job"))
    assert report.done == [ready.pk, scheduled.pk]
    for job in Job.objects.all():
        assert (job.status, job.reason) == ("cancelled", "cancelled by olga")
        assert job.finished_at is not None
        assert job.cancel_requested_at is not None
    assert not Run.objects.exists()


def test_a_running_job_is_asked_to_stop_and_the_first_request_counts() -> None:
    held = enqueue_and_claim()
    assert job_operations.cancel([held.id]).done == [held.id]
    first = Job.objects.get().cancel_requested_at
    assert job_operations.cancel([held.id]).done == [held.id]
    job = Job.objects.get()
    assert (job.status, job.cancel_requested_at) == ("running", first)


@pytest.mark.parametrize(
    "outcome",
    [
        *(Lost(reason="gone"), TimedOut(seconds=1.0), Failed(error=ErrorReport.plain("E", "x"))),
        *(Snoozed(seconds=9.0), Released(), FORCED, Released(began=False)),
    ],
)
@pytest.mark.parametrize(
    "ask, reason",
    [
        (lambda id_, ada: job_operations.cancel([id_]), None),
        (lambda id_, ada: job_operations.cancel([id_], actor=ada), "cancelled by olga"),
        (lambda id_, ada: cancel(id_, reason="no use"), "no use"),
        (lambda id_, ada: cancel(id_, force=True), "stopped by force"),
        (
            lambda id_, ada: job_operations.stop([id_], actor=ada, reason="it loops"),
            "stopped by force by olga: it loops",
        ),
    ],
)
def test_however_a_cancelled_attempt_ends_its_job_says_why_and_by_whom(
    outcome: Outcome, ask: Callable[[int, Any], object], reason: str | None
) -> None:
    held = enqueue_and_claim()
    assert ask(held.id, make_user("cancel_job", "stop_job"))
    settle_one(held, outcome)
    job = Job.objects.get()
    assert job.status == "cancelled"
    assert job.reason == (reason or job.reason)
    assert job.reason


def test_a_success_keeps_no_reason_of_a_cancel() -> None:
    held = enqueue_and_claim()
    cancel(held.id, reason="no use", force=True)
    settle_one(held, Succeeded())
    job = Job.objects.get()
    assert (job.status, job.reason) == ("succeeded", "")


def test_force_follows_a_cancel_and_nothing_follows_force() -> None:
    held = enqueue_and_claim()
    asked = [
        job_operations.cancel([held.id], reason="first"),
        job_operations.cancel([held.id], reason="second"),
        job_operations.stop([held.id], by="ada", reason="third"),
    ]
    first = Job.objects.get()
    asked.append(job_operations.stop([held.id], reason="fourth"))
    asked.append(job_operations.cancel([held.id], reason="fifth"))
    assert [one.asked for one in asked] == [[held.id]] * 5
    job = Job.objects.get()
    assert (job.status, job.reason) == ("running", "stopped by force by ada: third")
    assert job.force_requested_at == first.force_requested_at
    assert job.force_requested_at > job.cancel_requested_at
    assert workers.cancels_asked([held.worker]) == [(held.worker, held.id, True)]


def test_what_does_not_run_is_cancelled_instead_of_stopped() -> None:
    ready, scheduled = noop.enqueue(), noop.using(delay=100).enqueue()
    report = job_operations.stop([ready.pk, scheduled.pk], by="ada", reason="no use")
    assert (report.done, report.asked) == ([ready.pk, scheduled.pk], [])
    for job in Job.objects.all():
        assert (job.status, job.reason) == ("cancelled", "cancelled by ada: no use")
        assert job.force_requested_at is None


def test_an_ended_or_missing_job_is_refused_with_its_status() -> None:
    held = enqueue_and_claim()
    settle_one(held, Succeeded())
    report = job_operations.cancel([held.id, 10**12])
    assert report.done == []
    assert report.refused == {held.id: "it is succeeded", 10**12: "there is no such job"}
    assert not cancel(held.id)


def test_the_given_reason_is_stored() -> None:
    job = noop.enqueue()
    job_operations.cancel([job.pk], reason="wrong customer")
    assert Job.objects.get().reason == "wrong customer"


@pytest.mark.django_db(transaction=True)
def test_a_job_postponed_during_its_cancel_is_cancelled() -> None:
    held = enqueue_and_claim()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            settle_one(held, Snoozed(seconds=100))  # not yet committed: the cancel has to wait
            report = pool.submit(cancel_elsewhere, held.id)
            wait_for_a_blocked_session()
        assert report.result(PATIENCE).done == [held.id]
    assert Job.objects.get().status == "cancelled"


# Priority and due time


def test_a_new_priority_moves_the_job_in_its_queue() -> None:
    first, second = noop.enqueue(), noop.enqueue()
    job_operations.reprioritize([second.pk], 10)
    assert [one.id for one in claim_ready(register_worker())] == [second.pk, first.pk]
    assert Job.objects.get(pk=second.pk).priority == 10


def test_the_rank_after_a_change_is_that_of_a_job_enqueued_so() -> None:
    job = noop.using(queue="strict", priority=-3).enqueue()
    job_operations.reprioritize([job.pk], 7)
    assert Job.objects.get().rank == pytest.approx(job.available_at.timestamp() - 7e8, abs=1e-2)


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    with pytest.raises(OperationRefused, match="from -100 to 100"):
        job_operations.reprioritize([1], priority)


def test_the_priority_of_a_running_job_is_not_changed() -> None:
    held = enqueue_and_claim()
    assert job_operations.reprioritize([held.id], 5).refused == {held.id: "it is running"}


@pytest.mark.django_db(transaction=True)
def test_run_now_makes_a_scheduled_job_ready_and_notifies_workers() -> None:
    job = noop.using(delay=3600, priority=2).enqueue()
    with moment() as now, listening() as notes:
        assert job_operations.run_now([job.pk]).done == [job.pk]
        assert notes() == ["default"]
    job.refresh_from_db()
    assert job.status == "ready"
    assert job.available_at in now
    assert job.rank == pytest.approx(job.available_at.timestamp() - 120, abs=1e-3)


def test_only_scheduled_jobs_can_be_run_now() -> None:
    job = noop.enqueue()
    assert job_operations.run_now([job.pk]).refused == {job.pk: "it is ready"}


# Queues and workers


def test_pausing_and_resuming_say_which_queues_changed() -> None:
    assert job_operations.pause(["default", "bulk", "nowhere"], reason="r" * 500) == [
        "bulk",
        "default",
    ]
    assert job_operations.pause(["default"]) == []
    queue = Queue.objects.get(name="default")
    assert queue.paused
    assert queue.paused_reason == "r" * 300
    assert job_operations.resume(["default", "emails"]) == ["default"]
    queue.refresh_from_db()
    assert (queue.paused, queue.paused_reason) == (False, "")


def test_a_pause_says_by_whom() -> None:
    job_operations.pause(["default"], actor=make_user("pause_queue"))
    paused = Queue.objects.get(name="default")
    assert (paused.paused_reason, paused.paused_by) == ("paused by olga", "olga")
    job_operations.resume(["default"])
    assert Queue.objects.get(name="default").paused_by == ""


@pytest.mark.django_db(transaction=True)
def test_a_resumed_queue_wakes_its_workers() -> None:
    job_operations.pause(["bulk"])
    with listening() as notes:
        job_operations.resume(["bulk"])
        assert notes() == ["bulk"]


def test_workers_that_are_alive_are_asked_to_stop_once() -> None:
    worker = register_worker()
    assert job_operations.stop_workers([worker]).done == [worker]
    asked = Worker.objects.get().drain_requested_at
    assert job_operations.stop_workers([worker, 10**12]).refused == {
        worker: "it is running",
        10**12: "there is no such worker",
    }
    assert Worker.objects.get().drain_requested_at == asked
