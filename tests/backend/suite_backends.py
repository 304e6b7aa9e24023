"""The backends with which Django's own tests run in place of its dummy and its immediate one."""

from __future__ import annotations

from typing import Any

from django_jobs.backend import JobsBackend
from django_jobs.models import Job
from django_jobs.testing import run_jobs


class DummyBackend(JobsBackend):
    """Has the attributes of Django's DummyBackend with which its tests look at what it enqueued."""

    @property
    def results(self) -> list[Any]:
        ids = Job.objects.order_by("pk").values_list("pk", flat=True)
        return [self.get_result(str(pk)) for pk in ids]

    def clear(self) -> None:
        Job.objects.all().delete()


class ImmediateBackend(JobsBackend):
    """Runs each job at once, with the real claim and settle, in the transaction of the test."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        run_jobs(until=Job.objects.get(pk=result.id))
        result.refresh()
        return result
