"""Anybody who may connect may notify. A notification is a hint, and nothing of it is trusted."""

from __future__ import annotations

import pytest

from django_jobs.models import Job, Worker
from tests.app import jobs
from tests.factories import run_sql

from .processes import Start, until, until_status

pytestmark = pytest.mark.processes

NONSENSE = [
    "",
    "no-such-queue",
    "default'; DROP TABLE django_jobs_job; --",
    "../../etc/passwd",
    '{"job_type": "os.system", "payload": {"command": "id"}}',
    "ü" * 3_000,
    "x" * 7_999,
]


def test_workers_read_the_table_regardless_of_the_notification(
    start_worker: Start,
) -> None:
    worker = start_worker("--poll-seconds", "0.5")
    until(lambda: Worker.objects.filter(status="running").exists())
    for _ in range(50):
        for payload in NONSENSE:
            run_sql("SELECT pg_notify('django_jobs', %s)", [payload])
    job = jobs.noop.enqueue()
    until_status(job, "succeeded")
    assert Job.objects.count() == 1
    assert Worker.objects.count() == 1  # it has not been replaced
    for payload in NONSENSE[1:]:
        assert payload not in worker.text()
