"""The reason that a person gives for an operation, whichever it is."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobs import OperationRefused, cancel, restore_occurrence, skip_occurrence
from django_jobs.lifecycle.editing import edits, occurrences
from django_jobs.lifecycle.operations import (
    bulk,
    dead_letters,
    jobs,
    limits,
    quarantines,
    schedules,
    signals,
    workflows,
)
from tests.app.jobs import noop
from tests.factories import due_schedule

pytestmark = pytest.mark.django_db

ROOMS = (
    *(bulk, dead_letters, edits, jobs, limits, occurrences, quarantines, schedules, signals),
    workflows,
)
DUE = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)
GIVEN: dict[str, Any] = {
    **{"action": "cancel", "terms": {}, "ids": [1], "runs": [1], "names": ["a"], "run": 1},
    **{"id_": 1, "name": "a", "job_type": "app.noop", "step": "a", "schedule": 1, "due": DUE},
    **{"to": DUE, "payload": {}, "version": 1, "check": lambda _: None, "prepare": None},
}


def operations() -> Iterator[Any]:
    for room in ROOMS:
        for name, does in inspect.getmembers(room, inspect.isfunction):
            parameters = inspect.signature(does).parameters
            is_pause = str(getattr(parameters.get("given"), "annotation", "")) == "Unpack[Pause]"
            takes = {*parameters, *(jobs.Pause.__annotations__ if is_pause else ())}
            asked = not name.startswith("_") and {"reason", "actor"} <= takes and name != "demand"
            if asked and inspect.unwrap(does).__module__ == room.__name__:
                yield pytest.param(does, id=f"{room.__name__.rpartition('.')[2]}.{name}")


@pytest.mark.parametrize("does", list(operations()))
def test_each_operation_refuses_a_reason_that_cannot_be_stored(does: Callable[..., Any]) -> None:
    needed = {
        name: GIVEN[name]
        for name, one in inspect.signature(does).parameters.items()
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    }
    for odd in (5, None, b"x", ["x"]):
        with pytest.raises(TypeError, match="a reason is text, not"):
            does(**needed, reason=odd)
    for text, what in (("a\0", "a NUL character"), ("\ud800", "a lone surrogate")):
        with pytest.raises(OperationRefused, match=f"the reason has {what}"):
            does(**needed, reason=text)


def test_all_operations_with_a_reason_are_tried() -> None:
    names = {one.id for one in operations()}
    assert {"jobs.cancel", "jobs.stop", "occurrences.skip", "edits.edit", "bulk.start"} <= names
    assert len(names) >= 20


def test_the_functions_of_the_package_say_so_too() -> None:
    job = noop.enqueue()
    with pytest.raises(TypeError, match="a reason is text, not 5"):
        cancel(job.pk, reason=5)  # type: ignore[arg-type]
    for force in (False, True):
        with pytest.raises(OperationRefused, match="NUL"):
            cancel(job.pk, reason="a\0", force=force)
    job.refresh_from_db()
    assert job.status == "ready"


@pytest.mark.parametrize(
    "odd", [dt.date(2099, 1, 1), "2099-01-01T00:00Z", None, dt.timedelta(hours=1), 0]
)
def test_what_is_no_time_is_named(odd: Any) -> None:
    schedule = due_schedule(-1800.0)
    due = schedule.starts_at
    assert due is not None
    for call in (
        lambda: skip_occurrence("tick", odd),
        lambda: restore_occurrence("tick", odd),
        lambda: occurrences.move(schedule.pk, due, odd),
        lambda: occurrences.replace_payload(schedule.pk, odd, {}, 1),
    ):
        with pytest.raises(TypeError, match="a due time is a datetime with a time zone, not"):
            call()


def test_what_is_no_name_of_a_schedule_is_named() -> None:
    schedule = due_schedule(-1800.0)
    odd: Any
    for odd, text in ((5, "not 5"), (None, "not None"), (schedule, "; pass its name")):
        with pytest.raises(TypeError, match=f"a schedule is given by its name, .*{text}"):
            skip_occurrence(odd, DUE)
    with pytest.raises(OperationRefused, match="no schedule is named"):
        skip_occurrence("tick\0", DUE)
