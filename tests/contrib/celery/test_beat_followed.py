"""A worker follows the rows of django-celery-beat that change while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.db import connection

from django_jobs.contrib.celery.beat.importing import EVERY, FOLLOWING
from django_jobs.models import Schedule
from tests.contrib.celery.test_beat_install import REASON, beat
from tests.worker.processes import JobWorker, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("django_celery_beat") is None, reason=REASON),
]
SETTINGS = "tests.contrib.celery.project.beat_settings"
OF_A_VIEW = """
import json
from django_celery_beat.models import IntervalSchedule, PeriodicTask
tasks = PeriodicTask.objects
def create(name):
    every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    task = "tests.contrib.celery.project.tasks.tick"
    tasks.create(name=name, task=task, interval=every, args=json.dumps([name]))
"""


@pytest.fixture
def _tables(transactional_db: None) -> Iterator[None]:
    try:
        beat("django", "migrate", "--verbosity=0")
        yield
    finally:
        beat("django", "migrate", "--verbosity=0", "django_celery_beat", "zero")
        connection.close()


def in_a_view(code: str) -> None:
    """Run code in another process of the project."""
    beat("django", "shell", "-c", OF_A_VIEW + code, settings=SETTINGS)


@pytest.mark.usefixtures("_tables")
def test_rows_that_a_view_makes_changes_and_deletes_are_followed(
    start_worker: Callable[..., JobWorker], tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    effects.touch()

    def ticks(label: str) -> int:
        return effects.read_text().splitlines().count(f"tick of {label}")

    in_a_view("create('a')")
    printed = beat("django", "jobimport", "celery", settings=SETTINGS)
    assert f"Rows that change are followed, every {EVERY:g} s" in printed
    Schedule.objects.filter(name=FOLLOWING).update(every=1)  # half a minute is long for a test
    start_worker(DJANGO_SETTINGS_MODULE=SETTINGS, PROJECT_EFFECTS=str(effects))
    until(lambda: ticks("a") > 0)
    in_a_view("create('b')")
    until(lambda: ticks("b") > 0)
    in_a_view("tasks.filter(name='a').update(enabled=False)")
    until(lambda: not Schedule.objects.get(name="a").enabled)
    in_a_view("tasks.filter(name='a').update(enabled=True, args=json.dumps(['c']))")
    until(lambda: ticks("c") > 0)
    in_a_view("tasks.get(name='b').delete()")
    until(lambda: not Schedule.objects.get(name="b").enabled)


def test_nothing_follows_in_a_project_without_the_package() -> None:
    from django_jobs import registry
    from django_jobs.contrib.celery.beat.importing import FOLLOW

    assert registry.find(FOLLOW) is None
