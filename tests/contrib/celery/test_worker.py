"""A real ``jobworker`` runs a Celery project's tasks, without a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("celery")

from django.db import connections

from django_jobs import registry
from django_jobs.api import schedules
from django_jobs.api.waiting import listener
from django_jobs.contrib.celery.beat.declared import declare
from tests.contrib.celery.project import celery_app, celery_settings, tasks
from tests.patience import PATIENCE
from tests.worker.processes import JobWorker, until

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("project")]
SETTINGS = "tests.contrib.celery.project.settings"


@pytest.fixture
def beat(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, configure: Callable[..., None]
) -> Iterator[None]:
    """The entries of beat are schedules, as after ``migrate``."""
    monkeypatch.setenv("PROJECT_BEAT", "1")
    configure(beat_schedule=celery_settings.EVERY_SECOND)
    declare(celery_app)
    schedules.synchronise("default")
    yield
    for name in celery_settings.EVERY_SECOND:
        registry.forget_schedule(name)


@pytest.mark.usefixtures("beat")
def test_a_worker_finds_the_projects_tasks_and_entries_of_beat_and_runs_them(
    start_worker: Callable[..., JobWorker], tmp_path: Path
) -> None:
    (effects := tmp_path / "effects").touch()
    sums = [tasks.add.delay(number, 1) for number in range(5)]
    fetched, failed = tasks.fetch.delay("http://x", failures=1), tasks.fail.delay("no")
    start_worker(DJANGO_SETTINGS_MODULE=SETTINGS, PROJECT_EFFECTS=str(effects))
    assert [one.get(timeout=PATIENCE) for one in sums] == [1, 2, 3, 4, 5]
    assert fetched.get(timeout=PATIENCE) == ["http://x", 1]
    with pytest.raises(ValueError, match=r"^no$"):
        failed.get(timeout=PATIENCE)
    until(lambda: "tick of beat" in effects.read_text())


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
    waiting.join(PATIENCE)
    assert seen == [3]
