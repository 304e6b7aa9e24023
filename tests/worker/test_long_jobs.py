"""Long jobs in real workers: killed, drained, and gone on with."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from django_jobs import cancel
from django_jobs.api import JobType
from django_jobs.models import Job, Progress, Receipt, Run, Worker
from tests.app.long_jobs import (
    charge,
    charge_async,
    import_numbers,
    report_async,
    walk,
    walk_alone,
    walk_async,
)
from tests.app.models import Effect

from .processes import (
    BEATS_OFTEN,
    JobWorker,
    let_go,
    lines,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes
Start = Callable[..., JobWorker]

ROWS = 1_000


def outcomes(job: Job) -> list[str]:
    return list(Run.objects.filter(job=job).order_by("attempt").values_list("outcome", flat=True))


def checkpoint_of(job: Job) -> int:
    row = Progress.objects.filter(pk=job.pk).first()
    return 0 if row is None or row.checkpoint is None else int(row.checkpoint)


def effects(job: Job) -> list[str]:
    return list(Effect.objects.filter(job_id=job.pk).order_by("pk").values_list("note", flat=True))


def sources(count: int) -> list[str]:
    """Rows to walk over; what a walk leaves for each."""
    made = Effect.objects.bulk_create([Effect(note="source") for _ in range(count)])
    return [f"of {row.pk}" for row in made]


@pytest.mark.parametrize("inside", [True, False])
def test_an_import_killed_at_52_percent_continues_there(
    start_worker: Start, tmp_path: Path, inside: bool
) -> None:
    path = tmp_path / "job"
    job = import_numbers.enqueue(str(path), ROWS, 520, inside)
    start_worker()
    pid = until_marked(path)
    # Nothing is reported any more. Inside the transaction all is written; outside it may be the
    # state of a moment ago.
    os.kill(pid, signal.SIGKILL)
    let_go(path)
    done = until_status(job, "succeeded")
    assert outcomes(job) == ["lost", "succeeded"]
    assert done.result <= 520
    if inside:
        assert done.result == 520
    made = [int(note) for note in effects(job)]
    assert made == [*range(520), *range(done.result, ROWS)]


def test_reports_are_written_within_a_second_and_survive_a_kill(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "job"
    job = import_numbers.enqueue(str(path), ROWS, 520, False)
    start_worker()
    pid = until_marked(path)
    until(lambda: checkpoint_of(job) == 520)
    row = Progress.objects.get(pk=job.pk)
    assert (row.fraction, row.note, row.attempt) == (0.52, "number 519", 1)
    os.kill(pid, signal.SIGKILL)
    let_go(path)
    assert until_status(job, "succeeded").result == 520
    assert [int(note) for note in effects(job)] == list(range(ROWS))


@pytest.mark.parametrize("job_type, arguments", [(walk, [True]), (walk, [False]), (walk_async, [])])
def test_a_drain_stops_iterate_and_the_next_worker_continues_there(
    start_worker: Start, tmp_path: Path, job_type: JobType[..., int], arguments: list[bool]
) -> None:
    wanted, path = sources(ROWS), tmp_path / "job"
    job = job_type.enqueue(str(path), 300, *arguments)
    worker = start_worker("--drain-timeout", "300")
    drain_at_the_pause(worker, path)
    assert worker.wait() == 0
    assert outcomes(job) == ["released"]
    released = Job.objects.get(pk=job.pk)
    assert (released.status, released.failures, released.crashes) == ("ready", 0, 0)
    assert effects(job) == wanted[:300]
    start_worker()
    assert until_status(job, "succeeded").result == ROWS - 300
    assert effects(job) == wanted
    assert outcomes(job) == ["released", "succeeded"]


def test_iterate_in_an_isolated_job_is_drained_too(start_worker: Start, tmp_path: Path) -> None:
    wanted, path = sources(ROWS), tmp_path / "job"
    job = walk_alone.enqueue(str(path), 300)
    worker = start_worker("--drain-timeout", "300")
    drain_at_the_pause(worker, path)
    assert worker.wait() == 0
    assert outcomes(job) == ["released"]
    assert len(effects(job)) < ROWS
    start_worker()
    until_status(job, "succeeded")
    assert effects(job) == wanted


def drain_at_the_pause(worker: JobWorker, path: Path) -> None:
    """Ask for a drain while the handler pauses; let it go on once its process knows."""
    until_marked(path)
    worker.signal(signal.SIGTERM)
    until(lambda: Worker.objects.filter(status="draining").exists())
    let_go(path)


def test_a_cancel_stops_iterate_between_two_rows(start_worker: Start, tmp_path: Path) -> None:
    sources(ROWS)
    path = tmp_path / "job"
    job = walk.enqueue(str(path), 300, False)
    worker = start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    until_marked(path)
    assert cancel(job.pk)
    ended = until_status(job, "cancelled")
    assert ended.reason == "cancelled while running"
    assert len(effects(job)) == 300
    assert worker.process.poll() is None


def test_an_async_handler_reports_and_reads_its_saved_checkpoint(start_worker: Start) -> None:
    job = report_async.enqueue()
    start_worker()
    assert until_status(job, "succeeded").result == {"number": 999}
    assert outcomes(job) == ["failed", "succeeded"]


@pytest.mark.parametrize("job_type", [charge, charge_async])
def test_a_once_call_is_made_once_although_the_first_attempt_failed(
    start_worker: Start, tmp_path: Path, job_type: JobType[..., object]
) -> None:
    path = tmp_path / "call"
    job = job_type.enqueue(str(path))
    worker = start_worker()
    assert until_status(job, "succeeded").result == {"charge": 1}
    assert outcomes(job) == ["failed", "succeeded"]
    assert len(lines(path)) == 1
    assert Receipt.objects.get().prevented == 1
    assert "event=duplicate_prevented" in worker.text()
