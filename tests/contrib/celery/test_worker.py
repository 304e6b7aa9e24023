"""A real ``jobworker`` runs a Celery project's tasks, without a broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("celery")

from tests.contrib.celery.project import tasks
from tests.worker.processes import JobWorker

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("project")]
SETTINGS = "tests.contrib.celery.project.settings"


def test_a_worker_finds_the_projects_tasks_and_runs_them(
    start_worker: Callable[..., JobWorker],
) -> None:
    sums = [tasks.add.delay(number, 1) for number in range(5)]
    fetched, failed = tasks.fetch.delay("http://x", failures=1), tasks.fail.delay("no")
    start_worker(DJANGO_SETTINGS_MODULE=SETTINGS)
    assert [one.get(timeout=60, interval=0.01) for one in sums] == [1, 2, 3, 4, 5]
    assert fetched.get(timeout=60, interval=0.01) == ["http://x", 1]
    with pytest.raises(ValueError, match=r"^no$"):
        failed.get(timeout=60, interval=0.01)
