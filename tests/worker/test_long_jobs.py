"""Long jobs in real workers: killed, drained, and gone on with."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from django_jobs.models import Job, Progress, Worker
from tests.app.long_jobs import (
    import_numbers,
    walk,
    walk_alone,
    walk_async,
)
from tests.app.models import Effect

from .processes import (
    Start,
    let_go,
    outcomes,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes

ROWS = 1_000


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
    start_worker: Start, path: Path, inside: bool
) -> None:
    job = import_numbers.enqueue(str(path), ROWS, 520, inside)
    start_worker()
    pid = until_marked(path)
    # Inside the transaction all is written; outside it is within a second.
    until(lambda: inside or checkpoint_of(job) == 520)
    row = Progress.objects.get(pk=job.pk)
    assert inside or (row.fraction, row.note, row.attempt) == (0.52, "number 519", 1)
    os.kill(pid, signal.SIGKILL)
    let_go(path)
    assert until_status(job, "succeeded").result == 520
    assert outcomes(job) == ["lost", "succeeded"]
    assert [int(note) for note in effects(job)] == list(range(ROWS))


def test_a_drain_stops_iterate_and_the_next_worker_continues_there(
    start_worker: Start, tmp_path: Path
) -> None:
    wanted = sources(ROWS)
    paths = {name: tmp_path / name for name in ("rows", "chunks", "loop", "alone")}
    walks = {
        "rows": walk.enqueue(str(paths["rows"]), 300, True),
        "chunks": walk.enqueue(str(paths["chunks"]), 300, False),
        "loop": walk_async.enqueue(str(paths["loop"]), 300),
        "alone": walk_alone.enqueue(str(paths["alone"]), 300),
    }
    worker = start_worker("--drain-timeout", "300")
    for path in paths.values():
        until_marked(path)
    worker.signal(signal.SIGTERM)
    until(lambda: Worker.objects.filter(status="draining").exists())
    for path in paths.values():
        let_go(path)
    assert worker.wait() == 0
    for name, job in walks.items():
        assert outcomes(job) == ["released"], name
        released = Job.objects.get(pk=job.pk)
        assert (released.status, released.failures, released.crashes) == ("ready", 0, 0), name
        # A child hears of the drain a moment later.
        assert effects(job) == wanted[:300] or name == "alone", name
        assert len(effects(job)) < ROWS, name
    start_worker()
    for name, job in walks.items():
        left = until_status(job, "succeeded").result
        assert left == ROWS - 300 or name == "alone", name
        assert effects(job) == wanted, name
        assert outcomes(job) == ["released", "succeeded"], name
