"""A dependency that is down, with a real worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db.models import Sum

from django_jobs.models import Job, Resource, Run
from tests.app.gate_jobs import post_to_ledger

from .processes import Start, until

pytestmark = pytest.mark.processes

JOBS = 40


def test_a_dependency_that_is_down_uses_up_no_attempts(start_worker: Start, tmp_path: Path) -> None:
    Resource.objects.create(name="ledger", breaker_failures=3, breaker_open_for=1.0)
    dependency = tmp_path / "up"
    for _ in range(JOBS):
        post_to_ledger.using(max_attempts=4).enqueue(str(dependency))
    worker = start_worker("--threads", "2")
    until(lambda: worker.text().count("breaker_half_opened") >= 2)
    assert not Job.objects.filter(status="dead").exists()
    dependency.touch()
    until(lambda: Job.objects.filter(status="succeeded").count() == JOBS)
    until(lambda: Resource.objects.get().breaker_state == "closed")
    failed = Run.objects.filter(outcome="failed").count()
    counted = Job.objects.aggregate(sum=Sum("failures"))["sum"]
    assert 3 <= counted < failed
    for event in ("breaker_opened", "breaker_half_opened", "breaker_closed"):
        assert event in worker.text()
