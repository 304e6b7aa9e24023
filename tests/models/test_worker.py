"""Workers: one row per boot."""

from __future__ import annotations

import pytest

from django_jobs.models import Worker, WorkerStatus
from django_jobs.models.database import fetch
from django_jobs.models.worker import IS_ALIVE
from tests.factories import register_worker


@pytest.mark.django_db
def test_a_worker_is_named_with_its_number() -> None:
    worker = Worker.objects.get(pk=register_worker("web"))
    assert str(worker) == f"web #{worker.pk}"


@pytest.mark.parametrize("status", WorkerStatus)
def test_running_and_draining_workers_have_not_ended(status: WorkerStatus) -> None:
    assert Worker(status=status).has_ended == (status not in ("running", "draining"))


@pytest.mark.django_db
@pytest.mark.parametrize(("lease", "alive"), [(60, True), (-1, False)])
@pytest.mark.parametrize("status", WorkerStatus)
def test_sql_and_queryset_agree_on_which_workers_are_alive(
    status: WorkerStatus, lease: int, alive: bool
) -> None:
    worker = register_worker(lease=lease)
    Worker.objects.update(status=status)
    ((by_sql,),) = fetch(f"SELECT {IS_ALIVE} FROM django_jobs_worker AS worker", {})
    assert by_sql == Worker.objects.alive().filter(pk=worker).exists()
    assert by_sql == (alive and status in ("running", "draining"))
