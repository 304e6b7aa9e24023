"""Cancelling a job that runs, with real processes."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.db import transaction
from django.db.models.functions import Now

from django_jobs import cancel
from django_jobs.models import Job, Worker
from django_jobs.worker.process.settler import FRESH_SECONDS
from tests.app import jobs, limit_jobs
from tests.app.models import Effect

from .processes import (
    Start,
    in_case,
    is_alive,
    let_go,
    lines,
    outcomes,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes

NO_GRACE = json.dumps({"HEARTBEAT_SECONDS": 0.5, "CANCEL_GRACE_SECONDS": 0.3})
LONG_GRACE = json.dumps({"HEARTBEAT_SECONDS": 0.5, "CANCEL_GRACE_SECONDS": 600})


def test_an_async_handler_is_cancelled_at_its_await(start_worker: Start, tmp_path: Path) -> None:
    other = tmp_path / "other"
    neighbour = limit_jobs.await_cancel.enqueue(str(other))
    start_worker(TEST_DJANGO_JOBS=LONG_GRACE)
    until_marked(other)
    for name in ("await_cancel", "await_cancel_alone"):
        with in_case(name):
            path = tmp_path / name
            job = getattr(limit_jobs, name).enqueue(str(path))
            until_marked(path)
            assert cancel(job.pk)
            assert until_status(job, "cancelled").reason == "cancelled while running"
            assert outcomes(job) == ["cancelled"]
            assert Path(f"{path}.cancelled").exists()
    assert Job.objects.get(pk=neighbour.pk).status == "running"
    assert not Path(f"{other}.cancelled").exists()
    assert Worker.objects.count() == 1


def test_an_isolated_handler_that_ignores_a_cancel_is_killed_after_the_grace(
    start_worker: Start, tmp_path: Path
) -> None:
    path, other = tmp_path / "job", tmp_path / "other"
    neighbour = jobs.hold.enqueue(str(other))
    job = limit_jobs.sleep_deaf_alone.enqueue(str(path))
    start_worker(TEST_DJANGO_JOBS=NO_GRACE)
    child = psutil.Process(until_marked(path))
    until_marked(other)
    assert cancel(job.pk)
    assert until_status(job, "cancelled").reason == "cancelled while running"
    assert not is_alive(child)
    let_go(path)  # nobody is there any more
    let_go(other)
    until_status(neighbour, "succeeded")
    assert outcomes(job) == ["cancelled"]
    assert outcomes(neighbour) == ["succeeded"]
    assert len(lines(path)) == 1
    assert not Effect.objects.filter(note="after all").exists()


def test_a_plain_handler_is_asked_to_stop_and_not_interrupted(
    start_worker: Start, tmp_path: Path
) -> None:
    heeding, deaf = tmp_path / "heeding", tmp_path / "deaf"
    first = jobs.hold.enqueue(str(heeding))
    second = jobs.hold_in_transaction.enqueue(str(deaf))
    start_worker(TEST_DJANGO_JOBS=NO_GRACE)
    until_marked(heeding)
    until_marked(deaf)
    assert cancel(second.pk)
    assert cancel(first.pk)
    assert until_status(first, "succeeded").result == "stopped"
    until(lambda: Job.objects.get(pk=second.pk).cancel_requested_at is not None)
    assert Job.objects.get(pk=second.pk).status == "running"
    # What it has done is done: its success stands, and with it what it wrote.
    let_go(deaf)
    until_status(second, "succeeded")
    assert outcomes(second) == ["succeeded"]
    assert Effect.objects.filter(job_id=second.pk).count() == 1


HOARDS = "from django_jobs.worker.pools import pool; pool.PREFETCH_SECONDS = 600"
HOARDS_DEAF = f"{HOARDS}; from django_jobs.worker import wakeup; wakeup.CHANNEL = 'elsewhere'"


@pytest.mark.parametrize("before", [HOARDS, HOARDS_DEAF])
def test_a_cancelled_prefetched_job_never_starts(
    start_worker: Start, tmp_path: Path, before: str
) -> None:
    """Also where no notification arrives."""
    path = tmp_path / "slow"
    start_worker("--threads", "1", before=before)
    until_status(jobs.noop.enqueue(), "succeeded")  # now it knows that jobs are quick
    with transaction.atomic():
        slow = jobs.hold.enqueue(str(path), note="slow")
        behind = [jobs.write_effect.enqueue(str(number)) for number in range(5)]
    until_marked(path)
    held = Job.objects.filter(status="running")
    until(lambda: held.count() == 6)
    assert cancel(behind[2].pk)
    job = until_status(behind[2], "cancelled")
    assert (job.reason, job.attempt, outcomes(job)) == ("cancelled", 0, [])
    assert held.count() == 5
    let_go(path)
    for other in (slow, *behind[:2], *behind[3:]):
        assert until_status(other, "succeeded").attempt == 1
    assert set(Effect.objects.values_list("note", flat=True)) == {"slow", "0", "1", "3", "4"}
    assert not cancel(behind[2].pk)


HELD_UP = (
    f"{HOARDS}; from django_jobs.worker.process import settler; "
    "settler.Settler._drop_cancelled = lambda self: None"
)


def test_a_thread_requests_a_look_for_cancels_if_the_last_is_old(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "slow"
    start_worker("--threads", "1", before=HELD_UP)
    until_status(jobs.noop.enqueue(), "succeeded")  # now it knows that jobs are quick
    with transaction.atomic():
        slow = jobs.hold.enqueue(str(path), note="slow")
        behind = [jobs.write_effect.enqueue(str(number)) for number in range(3)]
    until_marked(path)
    held = Job.objects.filter(status="running")
    # What was claimed this lately begins without a look.
    waited = held.filter(claimed_at__lt=Now() - timedelta(seconds=2 * FRESH_SECONDS))
    until(lambda: waited.count() == 4)
    assert cancel(behind[1].pk)
    let_go(path)
    job = until_status(behind[1], "cancelled")
    assert (job.reason, job.attempt, outcomes(job)) == ("cancelled", 0, [])
    for other in (slow, behind[0], behind[2]):
        until_status(other, "succeeded")
    assert set(Effect.objects.values_list("note", flat=True)) == {"slow", "0", "2"}
