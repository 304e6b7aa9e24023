"""What a claimer holds, and how it lets go of it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import transaction

from django_jobs.models import Job
from django_jobs.worker.board import Board
from django_jobs.worker.cancels import Cancels
from django_jobs.worker.claimer import Claimer
from django_jobs.worker.holding import Holding
from django_jobs.worker.options import Options, QueueShare
from tests.app.jobs import noop
from tests.factories import boot_worker, claim_ready, in_threads, run_sql

NO_EXECUTOR: Any = None
"""Of what is asked here, nothing needs one."""


@pytest.mark.django_db(transaction=True)
def test_a_lock_on_one_job_keeps_no_other_from_being_given_back() -> None:
    for _ in range(3):
        noop.enqueue()
    worker = boot_worker()
    held = claim_ready(worker)
    slot, holding = Board(1, 4).slots[0], Holding()
    slot.register(worker, time.monotonic() + 60)
    options = Options(queues=(QueueShare(name="default"),))
    claimer = Claimer(options, slot, NO_EXECUTOR, holding, Cancels(slot))
    holding.add(held)
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held[1].id])
        (locked,) = in_threads(1, lambda _: claimer._give_back(held))
    assert locked == [held[1]]
    assert [job in holding for job in held] == [False, True, False]
    statuses = dict(Job.objects.values_list("pk", "status"))
    assert [statuses[job.id] for job in held] == ["ready", "running", "ready"]
    assert in_threads(1, lambda _: claimer._give_back(locked)) == [[]]
    assert not holding
