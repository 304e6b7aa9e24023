"""Workers: one row per boot."""

from __future__ import annotations

import pytest

from django_jobs.models import Worker, WorkerStatus
from tests.factories import register_worker


@pytest.mark.django_db
def test_a_worker_is_named_with_its_number() -> None:
    worker = Worker.objects.get(pk=register_worker("web"))
    assert str(worker) == f"web #{worker.pk}"


@pytest.mark.parametrize("status", WorkerStatus)
def test_running_and_draining_workers_are_alive(status: WorkerStatus) -> None:
    assert Worker(status=status).is_alive == (status in ("running", "draining"))
