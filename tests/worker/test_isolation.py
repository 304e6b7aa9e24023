"""A job that runs alone in a child process, seen from inside the child."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from django_jobs.models import Job, Run
from django_jobs.worker import isolation
from django_jobs.worker.board import Board
from tests.app.jobs import noop
from tests.factories import boot_worker, claim_ready, declared, run_sql


class Silent:
    """A link on which nothing is ever heard."""

    def receive(self, timeout: float) -> None:
        """Nothing."""


def terminate_own_connection() -> None:
    """Have the server end the connection that the job will be settled on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(_terminate, pid).result()


def _terminate(pid: int) -> None:
    try:
        run_sql("SELECT pg_terminate_backend(%s)", [pid])
    finally:
        connection.close()


def run_alone(*arguments: Any) -> None:
    """As the child does, on a connection of its own."""
    try:
        isolation._run(*arguments)
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
def test_a_job_is_settled_also_when_the_database_fails_and_no_beat_has_come_for_long() -> None:
    """It was given up, and then given back as a job that had never begun: it ran twice in one
    attempt. The chaos test found it."""
    with declared(terminate_own_connection) as job_type:
        job = job_type.enqueue()
        worker = boot_worker()
        claim_ready(worker, job_types={job_type.name: 1})
        slot = Board(1).slots[0]
        slot.register(worker, time.monotonic() - 1.0)
        index = slot.start(job.pk, 1, worker, 0.0, True)
        with ThreadPoolExecutor(1) as child:
            child.submit(run_alone, Silent(), slot, worker, job.pk, index).result()
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert Run.objects.get().outcome == "succeeded"


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_not_the_worker_s_any_more_is_not_begun() -> None:
    job = noop.enqueue()
    worker = boot_worker()
    slot = Board(1).slots[0]
    slot.register(worker, time.monotonic() + 60.0)
    with ThreadPoolExecutor(1) as child:
        child.submit(run_alone, Silent(), slot, worker, job.pk, 0).result()
    assert Job.objects.get(pk=job.pk).status == "ready"
    assert not Run.objects.exists()
