"""System checks of the schedules that are declared in code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.core.checks import run_checks

from django_jobs import registry, schedule
from django_jobs.checks import TAG


@pytest.fixture(autouse=True)
def _nothing_else_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_schedules", {})
    monkeypatch.setattr(registry, "_schedule_clashes", set())


def problems() -> list[str]:
    found = [message for message in run_checks(tags=[TAG]) if message.id == f"{TAG}.E010"]
    assert all(message.hint for message in found)
    return [message.msg for message in found]


def test_schedules_that_can_be_fired_pass() -> None:
    schedule("a", "app.noop", every=60)
    schedule("b", "app.add", every=60, payload={"first": 1})
    assert problems() == []


@pytest.mark.parametrize(
    "declare, expected",
    [
        (lambda: schedule("a", "app.nope", every=60), "no job type is named 'app.nope'"),
        (lambda: schedule("a", "app.add", every=60), "missing a required argument: 'first'"),
        (
            lambda: schedule("a", "app.bill_tenant", every=60, payload={"tenant_id": None}),
            "the argument 'tenant_id' is None",
        ),
    ],
)
def test_a_schedule_that_cannot_be_fired_is_reported_with_the_reason(
    declare: Callable[[], None], expected: str
) -> None:
    declare()
    (problem,) = problems()
    assert "The schedule 'a' cannot be fired: " in problem
    assert expected in problem


def test_a_name_declared_twice_is_reported_unless_both_are_equal() -> None:
    schedule("a", "app.noop", every=60)
    schedule("a", "app.noop", every=60.0)
    assert problems() == []
    schedule("a", "app.noop", every=90)
    assert problems() == ["The schedule 'a' is declared twice with different options."]
    assert registry.schedules()["a"]["every"] == 60.0
    registry.forget_schedule("a")
    assert problems() == []
