"""A job that runs is stopped by a later one of its full key, with two real worker processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_jobs.models import Job
from tests.app import jobs
from tests.app.models import Effect

from .processes import BEATS_OFTEN, Start, let_go, until_marked, until_status

pytestmark = pytest.mark.processes


def test_the_newest_stops_what_runs_and_starts_once_it_has_ended(
    start_worker: Start, tmp_path: Path
) -> None:
    paths = [tmp_path / str(number) for number in range(3)]
    for _ in range(2):
        start_worker("--threads", "2", TEST_DJANGO_JOBS=BEATS_OFTEN)
    first = jobs.hold_last.enqueue(str(paths[0]))
    until_marked(paths[0])
    second = jobs.hold_last.enqueue(str(paths[1]))
    until_marked(paths[1])
    assert Job.objects.get(pk=first.pk).result == "stopped"
    third = jobs.hold_last.enqueue(str(paths[2]))
    until_marked(paths[2])
    assert Job.objects.get(pk=second.pk).result == "stopped"
    let_go(paths[2])
    until_status(third, "succeeded")
    assert Effect.objects.count() == 1
