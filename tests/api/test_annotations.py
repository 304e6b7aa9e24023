"""``DJANGO_JOBS["CHECK_ANNOTATIONS"]``: arguments are what their plain annotations say."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Optional
from uuid import UUID

import pytest
from django.db import transaction
from pytest_django import Settings

from django_jobs import JobType, PayloadError, chain, job, registry
from django_jobs.models import Job
from tests.app.jobs import add
from tests.factories import declared

if TYPE_CHECKING:
    from fractions import Fraction

pytestmark = pytest.mark.django_db


def handler(
    number: int = 0,
    share: float = 0.0,
    text: str = "",
    flag: bool = False,
    items: list[int] = [],  # noqa: B006
    names: dict[str, int] = {},  # noqa: B006
    maybe: int | None = None,
    old: Optional[str] = None,  # noqa: UP045
    choice: Literal["a", "b"] = "a",
    implicit: int = None,  # type: ignore[assignment]  # noqa: RUF013
    anything: Any = None,
    foreign: Fraction | int = 0,
    day: date = date.max,
    moment: datetime | None = None,
    hour: time = time.max,
    wait: timedelta = timedelta(),
    key: UUID | Literal["all"] = "all",
    amount: Decimal = Decimal(0),
    bare=None,  # type: ignore[no-untyped-def]
) -> None: ...


@pytest.fixture
def checked(settings: Settings) -> Iterator[JobType[..., Any]]:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "CHECK_ANNOTATIONS": True}
    yield job(name="app.annotated")(handler)
    registry.unregister("app.annotated")


GOOD = {
    "number": [1, -3],
    "share": [1, 1.5],
    "text": ["", "x"],
    "flag": [True],
    "items": [[1], (), ["not looked at"]],
    "names": [{"a": 1}],
    "maybe": [None, 1],
    "old": [None, "x"],
    "choice": ["b"],
    "implicit": [None, 1],
    "anything": [1, "x", []],
    "foreign": ["1.5", 1],
    "day": ["2026-11-29"],
    "moment": ["2026-11-29T05:00:00+01:00", "2026-11-29", None],
    "hour": ["05:30"],
    "wait": [90, 1.5, "00:01:30", "P1D"],
    "key": ["0b5a3c1e-6f1b-4f57-9f6e-7d2f0a6f3b11", "all"],
    "amount": ["1.50", 2, 1.5],
    "bare": [1, "x"],
}
BAD = {
    "number": ["1", 1.0, True, None],
    "share": ["1", True],
    "text": [1, None],
    "flag": [1, "yes"],
    "items": [{"a": 1}, "abc"],
    "names": [[1]],
    "maybe": ["1", False],
    "old": [1],
    "choice": ["c"],
    "implicit": ["x"],
    "day": ["2026-02-30", "29.11.2026", "", "2026-11-29T05:00", 20261129, ["2026"]],
    "moment": ["tomorrow", 1795960800, "2026-11-29T25:00"],
    "hour": ["25:00", 5],
    "wait": ["soon", True],
    "key": ["7", 7, "ALL"],
    "amount": ["1,50", True, None],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_value_that_fits_is_enqueued(checked: JobType[..., Any], name: str) -> None:
    for value in GOOD[name]:
        checked.enqueue(**{name: value})


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_does_not_fit_is_refused(checked: JobType[..., Any], name: str) -> None:
    for value in BAD[name]:
        with pytest.raises(PayloadError, match=f"app.annotated: {name} is an? .*, and its anno"):
            checked.enqueue(**{name: value})
    assert not Job.objects.exists()


def test_the_error_names_argument_and_annotation_and_no_value(checked: JobType[..., Any]) -> None:
    with pytest.raises(PayloadError) as refused:
        checked.enqueue("secret")
    assert str(refused.value) == "app.annotated: number is a str, and its annotation is int"
    with pytest.raises(PayloadError, match=r"day is a str that does not parse, and .* is date$"):
        checked.enqueue(day="2026-02-30")
    with pytest.raises(PayloadError, match=r"day is an int, and its annotation is date$"):
        checked.enqueue(day=20260230)


def test_each_way_to_enqueue_is_checked(checked: JobType[..., Any]) -> None:
    for call in (
        lambda: checked.enqueue_many([{"number": "1"}]),
        lambda: checked.enqueue_on_commit(number="1"),
        lambda: chain(checked.step(number="1")).start(),
    ):
        with pytest.raises(PayloadError, match="number is a str"):
            call()


def test_the_names_in_the_annotations_of_a_decorated_handler_are_those_of_its_module(
    settings: Settings,
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "CHECK_ANNOTATIONS": True}
    with declared(transaction.atomic(handler), name="app.decorated") as decorated:
        decorated.enqueue(choice="a")
        for refused in ({"choice": "c"}, {"old": 1}):
            with pytest.raises(PayloadError, match="and its annotation is "):
                decorated.enqueue(**refused)


def test_it_is_off_by_default() -> None:
    assert add.enqueue("1").payload == {"first": "1"}  # type: ignore[arg-type]


def test_while_debug_is_on_it_is_a_warning(settings: Settings) -> None:
    settings.DEBUG = True
    with pytest.warns(RuntimeWarning, match="first is a str, and its annotation is .*CHECK_ANNOT"):
        assert add.enqueue("1").payload == {"first": "1"}  # type: ignore[arg-type]
