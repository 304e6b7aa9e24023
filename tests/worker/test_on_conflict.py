"""What becomes of the jobs of a full key, by ``on_conflict``, with two real worker processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_jobs.models import Job
from tests.app import jobs
from tests.app.models import Effect

from .processes import BEATS_OFTEN, Start, let_go, lines, until_marked, until_status

pytestmark = pytest.mark.processes


@pytest.fixture
def paths(start_worker: Start, tmp_path: Path) -> list[Path]:
    """What three jobs hold. Two workers run."""
    for _ in range(2):
        start_worker("--threads", "2", TEST_DJANGO_JOBS=BEATS_OFTEN)
    return [tmp_path / str(number) for number in range(3)]


def status(job: Job) -> str:
    return Job.objects.get(pk=job.pk).status


def test_a_new_job_is_discarded_while_one_runs_and_not_after_it(paths: list[Path]) -> None:
    first = jobs.hold_first.enqueue(str(paths[0]))
    until_marked(paths[0])
    second = jobs.hold_first.enqueue(str(paths[1]))
    assert until_status(second, "cancelled").reason.startswith("discarded: ")
    assert status(first) == "running"
    let_go(paths[0])
    assert until_status(first, "succeeded").result == "went on"
    third = jobs.hold_first.enqueue(str(paths[2]))
    let_go(paths[2])
    until_status(third, "succeeded")
    assert lines(paths[1]) == []


def test_the_newest_replaces_what_waits_and_runs_after_what_runs(paths: list[Path]) -> None:
    first = jobs.hold_newest.enqueue(str(paths[0]))
    until_marked(paths[0])
    second, third = (jobs.hold_newest.enqueue(str(path)) for path in paths[1:])
    replaced = f"replaced: job {third.pk} has the same concurrency key hold"
    assert until_status(second, "cancelled").reason == replaced
    assert [status(first), status(third)] == ["running", "blocked"]
    let_go(paths[0])
    until_marked(paths[2])
    assert status(first) == "succeeded"
    let_go(paths[2])
    until_status(third, "succeeded")
    assert lines(paths[1]) == []


def test_the_newest_stops_what_runs_and_starts_once_it_has_ended(paths: list[Path]) -> None:
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
