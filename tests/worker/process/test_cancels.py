"""What a worker process knows of cancels before it begins a job."""

from __future__ import annotations

import time

import pytest

from django_jobs import cancel
from django_jobs.models import Job
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.process.settler import FRESH_SECONDS, LOOK_SECONDS, Cancels
from django_jobs.worker.statement_timeout import StatementTimeout
from tests.app.jobs import noop
from tests.factories import claim_ready, register_worker

pytestmark = pytest.mark.django_db


def test_a_look_finds_cancelled_jobs_of_its_worker_and_stays_fresh() -> None:
    jobs = [noop.enqueue() for _ in range(3)]
    worker = register_worker()
    slot = Scoreboard(1).slots[0]
    slot.register(worker, time.monotonic() + 60)
    cancels = Cancels(slot)
    began = time.monotonic()
    held = claim_ready(worker, limit=2)
    for job in jobs:
        assert cancel(job.pk)  # the last one is not running: it ends at once
    assert cancels.are_due(began - 1)
    assert not cancels.are_due(time.monotonic())  # what was claimed just now begins soon
    assert all(cancels.cover(job, began + FRESH_SECONDS) for job in held)
    waited = held[0]._replace(taken_at=began - 1)
    assert not cancels.cover(waited, time.monotonic())
    cancels.refresh(waited, StatementTimeout())
    assert cancels.asked == {job.pk for job in jobs[:2]}
    assert cancels.cover(waited, began + FRESH_SECONDS)
    assert not cancels.cover(waited, time.monotonic() + FRESH_SECONDS)
    assert LOOK_SECONDS < FRESH_SECONDS  # so that the claimer looks before a thread has to


def test_a_cancel_of_an_earlier_job_with_the_same_id_is_ignored() -> None:
    """After ``flush`` or a restore ids come back. Each claim of such a job was given back at once,
    for ever."""
    noop.enqueue()
    worker = register_worker()
    slot = Scoreboard(1).slots[0]
    slot.register(worker, time.monotonic() + 60)
    cancels = Cancels(slot)
    (held,) = claim_ready(worker)
    assert cancel(held.id)
    cancels.look()
    assert cancels.cover(held, time.monotonic())
    Job.objects.update(cancel_requested_at=None)
    again = held._replace(taken_at=time.monotonic())
    assert not cancels.cover(again, again.taken_at)
    cancels.refresh(again, StatementTimeout())
    assert not cancels.asked
    assert cancels.cover(again, again.taken_at)


def test_a_claim_returns_its_time() -> None:
    noop.enqueue()
    before = time.monotonic()
    (held,) = claim_ready(register_worker())
    assert before < held.taken_at <= time.monotonic()
