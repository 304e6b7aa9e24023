"""Tasks run by real workers."""

from __future__ import annotations

import pytest

from django_jobs.backend.interface import TaskResultStatus
from tests.app import tasks
from tests.worker.processes import Start, until

pytestmark = pytest.mark.processes


def test_a_worker_runs_the_tasks_of_tasks_modules(start_worker: Start) -> None:
    start_worker("--poll-seconds", "0.1")
    results = [task.enqueue(2, right=3) for task in (tasks.total, tasks.async_total)]
    for result in results:

        def is_finished(result: object = result) -> bool:
            result.refresh()  # type: ignore[attr-defined]
            return bool(result.is_finished)  # type: ignore[attr-defined]

        until(is_finished)
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 5)
