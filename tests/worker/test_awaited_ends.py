"""Which ends a worker process is asked to announce."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.decisions import Decision
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.states import JobState, RunState
from django_jobs.lifecycle.notifying import AWAITED
from django_jobs.lifecycle.settling import Ending, Settled
from django_jobs.worker import wakeup
from django_jobs.worker.wakeup import AwaitedEnds


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(wakeup, "notify_ends", found.extend)
    return found


def settled(job_id: int, status: JobState) -> Settled:
    class Held:
        id = job_id

    job: Any = Held()
    decision = Decision(status=status, run=RunState.SUCCEEDED, failures=0, crashes=0)
    return Settled(Ending(job, Succeeded()), decision)


def test_only_the_end_of_an_awaited_job_is_announced_and_once(announced: list[int]) -> None:
    awaited = AwaitedEnds()
    assert not awaited
    awaited.note(f"{AWAITED}7")
    awaited.notify([settled(6, JobState.SUCCEEDED), settled(7, JobState.SCHEDULED)])
    assert awaited
    assert not announced
    awaited.notify([settled(7, JobState.DEAD)])
    awaited.notify([settled(7, JobState.DEAD)])
    assert announced == [7]
    assert not awaited


def test_what_is_no_job_and_what_nobody_asks_for_any_more_is_forgotten(
    announced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = AwaitedEnds()
    awaited.note(f"{AWAITED}x")
    assert not awaited
    awaited.note(f"{AWAITED}7")
    monkeypatch.setattr(wakeup, "REMEMBER_SECONDS", -1.0)
    awaited.notify([])
    assert not awaited


def test_a_number_that_is_no_id_is_ignored() -> None:
    awaited = AwaitedEnds()
    awaited.note(f"{AWAITED}{'9' * 7_000}")  # of more digits than Python reads
    assert not awaited


def test_it_remembers_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeup, "MOST", 3)
    awaited = AwaitedEnds()
    for number in range(9):
        awaited.note(f"{AWAITED}{number}")
    assert len(awaited._asked) == 3
