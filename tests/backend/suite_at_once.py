"""The backend with which Django's tests of its immediate one run: ours, as with ``IMMEDIATE``."""

from __future__ import annotations

from typing import Any

from django_jobs.backend import JobsBackend
from django_jobs.testing import immediate


class ImmediateBackend(JobsBackend):
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        with immediate():
            return super().enqueue(task, args, kwargs)
