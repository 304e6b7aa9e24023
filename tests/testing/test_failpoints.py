"""Faults that are asked for: where they are put, when they are made, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import OperationalError

from django_jobs.lifecycle import claiming, workers
from django_jobs.signals import worker_event
from django_jobs.testing.failpoints import POINTS, VARIABLE, install
from tests.app import jobs
from tests.worker.processes import Start, until_status


def one() -> int:
    """Stands for a function that passes a point."""
    return 1


def nothing() -> None:
    """One that comes to nothing."""


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, str]]:
    """All places where a fault can be put. What is put there is gone when the test ends."""
    found = [place for point in POINTS.values() for place in point.places]
    for owner, name in found:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return found


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What the worker says of itself."""
    events: list[tuple[str, dict[str, Any]]] = []

    def hear(sender: str, fields: dict[str, Any], **others: Any) -> None:
        events.append((sender, fields))

    worker_event.connect(hear)
    yield events
    worker_event.disconnect(hear)


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}], ids=["unset", "empty"])
def test_nothing_is_replaced_without_a_requested_fault(
    places: list[tuple[Any, str]], heard: list[Any], environ: dict[str, str]
) -> None:
    before = [getattr(owner, name) for owner, name in places]
    install(environ)
    assert [getattr(owner, name) for owner, name in places] == before
    assert not any("failpoints" in function.__code__.co_filename for function in before)
    assert not heard


@pytest.mark.parametrize(
    "point, owner, name",
    [(point, *place) for point, found in POINTS.items() for place in found.places],
    ids=[f"{point}-{name}" for point, found in POINTS.items() for _, name in found.places],
)
def test_a_fault_happens_once_at_each_place_of_its_point(
    monkeypatch: pytest.MonkeyPatch, heard: list[Any], point: str, owner: Any, name: str
) -> None:
    monkeypatch.setattr(owner, name, one)
    install({VARIABLE: f"{point}:raise"})
    passing = getattr(owner, name)
    with pytest.raises(OperationalError):
        passing()
    assert passing() == passing() == 1
    assert [event for event, _ in heard] == ["fault_points", "fault_made"]
    assert heard[1][1]["fault"] == f"{point}:raise:1"


def test_a_fault_happens_at_the_requested_passage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "renew", one)
    install({VARIABLE: "before_beat:raise:3"})
    passing: Any = workers.renew
    assert passing() == passing() == 1
    with pytest.raises(OperationalError):
        passing()
    assert passing() == 1


def test_the_passages_of_all_places_of_a_point_are_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for owner, name in POINTS["before_settle"].places:
        monkeypatch.setattr(owner, name, one)
    install({VARIABLE: "before_settle:raise:2"})
    first, *_, last = (getattr(owner, name) for owner, name in POINTS["before_settle"].places)
    assert first() == 1
    with pytest.raises(OperationalError):
        last()


def test_an_empty_claim_passes_no_fault_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "claim", nothing)
    install({VARIABLE: "after_claim:raise"})
    passing: Any = claiming.claim
    assert passing() is None


def test_several_faults_may_be_requested_even_at_one_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "renew", one)
    install({VARIABLE: "before_beat:raise, before_beat:raise:2 ,after_beat:raise"})
    passing: Any = workers.renew
    for _ in range(3):
        with pytest.raises(OperationalError):
            passing()
    assert passing() == 1


@pytest.mark.parametrize(
    "text, problem",
    [
        ("before_setle:kill", "no point is named 'before_setle'; known: after_claim, "),
        ("before_settle", "no action is named ''; known: kill, stop, exit, raise"),
        ("before_settle:die", "no action is named 'die'; known: kill, stop, exit, raise"),
        ("before_settle:kill:0", "a passage is a number from 1 to 4000, not '0'"),
        ("before_settle:kill:4001", "a passage is a number from 1 to 4000, not '4001'"),
        ("before_settle:kill:1:2", "a passage is a number from 1 to 4000, not '1:2'"),
        ("before_settle:kill:²", "a passage is a number from 1 to 4000, not '²'"),
        ("before_settle:kill,", "no point is named ''; known: after_claim, "),
    ],
)
def test_unknown_faults_are_refused_with_the_known_ones(
    places: list[tuple[Any, str]], text: str, problem: str
) -> None:
    before = [getattr(owner, name) for owner, name in places]
    with pytest.raises(CommandError) as refusal:
        install({VARIABLE: text})
    assert str(refusal.value).startswith(f"{VARIABLE}: {problem}")
    assert [getattr(owner, name) for owner, name in places] == before


@pytest.mark.processes
def test_the_command_refuses_a_fault_that_it_does_not_know(start_worker: Start) -> None:
    worker = start_worker(DJANGO_JOBS_FAULT="before_lunch:kill")
    assert worker.wait() == 1
    assert "CommandError: DJANGO_JOBS_FAULT: no point is named 'before_lunch'" in worker.text()
    assert "before_settle" in worker.text()


@pytest.mark.processes
def test_the_command_warns_of_installed_faults(start_worker: Start, tmp_path: Path) -> None:
    job = jobs.noop.enqueue()
    worker = start_worker("-v", "0", "--burst", DJANGO_JOBS_FAULT="before_settle:raise:2")
    assert worker.wait() == 0
    assert "WARNING event=fault_points faults=before_settle:raise:2" in worker.text()
    assert "event=fault_made" not in worker.text()
    until_status(job, "succeeded")
