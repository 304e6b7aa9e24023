"""A real ``jobworker`` runs a Celery project's tasks, without a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

pytest.importorskip("celery")

from django.db import connections

from django_jobs.api.waiting.listener import listener
from tests.contrib.celery.project import tasks
from tests.worker.processes import JobWorker, until

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("project")]
SETTINGS = "tests.contrib.celery.project.settings"


def test_a_worker_finds_the_projects_tasks_and_runs_them(
    start_worker: Callable[..., JobWorker],
) -> None:
    sums = [tasks.add.delay(number, 1) for number in range(5)]
    fetched, failed = tasks.fetch.delay("http://x", failures=1), tasks.fail.delay("no")
    start_worker(DJANGO_SETTINGS_MODULE=SETTINGS)
    assert [one.get(timeout=60) for one in sums] == [1, 2, 3, 4, 5]
    assert fetched.get(timeout=60) == ["http://x", 1]
    with pytest.raises(ValueError, match=r"^no$"):
        failed.get(timeout=60)


def test_get_is_woken_by_the_worker(start_worker: Callable[..., JobWorker]) -> None:
    """Celery would look again after the interval, which is longer than this test may take."""
    sent, seen = tasks.add.delay(1, 2), []

    def get() -> None:
        seen.append(sent.get(interval=1000))
        connections.close_all()

    waiting = threading.Thread(target=get)
    waiting.start()
    until(lambda: listener._waiting)
    start_worker(DJANGO_SETTINGS_MODULE=SETTINGS)
    waiting.join(60)
    assert seen == [3]
