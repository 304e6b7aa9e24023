"""The values that tasks return and differential/values.py does not have, and those that Celery's
serializer refuses, which are failures."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import chain, shared_task
from kombu.exceptions import EncodeError

from django_jobs import PayloadError
from django_jobs.models import Job
from tests.contrib.celery.project import tasks
from tests.contrib.celery.running import run_all
from tests.patience import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


def nested(levels: int) -> Any:
    value: Any = "inside"
    for _ in range(levels):
        value = [value]
    return value


REFUSED = {
    "a set": {1},
    "a nested timedelta": {"took": [timedelta(seconds=1)]},
    "an enum": enum.Enum("Colour", "RED").RED,
    "a dataclass": dataclasses.make_dataclass("Point", ["x"])(1),
    "an object": object(),
    "a key that is a tuple": {(1, 2): 3},
    "far too deep": nested(100_000),
}


def test_an_argument_that_jsonb_keeps_is_readable_beside_one_that_it_does_not(
    declare: Callable[..., Any],
) -> None:
    def see(order: int, ratio: float) -> list[Any]:
        return [order, ratio]

    result = declare(see).delay(7, ratio=math.inf)
    assert Job.objects.get().payload["order"] == 7
    run_all()
    assert result.get(timeout=PATIENCE) == [7, math.inf]


@pytest.mark.parametrize("value", ["x" * 1_500_000, ["\x00" * 200_000, math.nan]])
def test_one_over_a_mebibyte_comes_back_within_the_setting(
    value: Any, declare: Callable[..., Any], settings: Any
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_RESULT_BYTES": 2_000_000}

    def given() -> Any:
        return value

    result = declare(given).delay()
    run_all()
    assert repr(result.get(timeout=PATIENCE)) == repr(value)


@pytest.mark.parametrize("kept", ["1", '{"a": NaN}', 5])
def test_a_value_that_looks_like_our_mark_is_as_unknown_as_in_celery(
    kept: Any, declare: Callable[..., Any]
) -> None:
    from django_jobs.contrib.celery.messages.arguments import AS_TEXT

    def looks() -> Any:
        return [{"__type__": AS_TEXT, "__value__": kept}]

    result = declare(looks).delay()
    run_all()
    with pytest.raises(ValueError, match="Unsupported type"):
        result.get(timeout=PATIENCE)


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_serializer_refuses_is_a_failure_with_its_hooks(
    what: str, declare: Callable[..., Any]
) -> None:
    def given() -> Any:
        return REFUSED[what]

    task = declare(given, base=tasks.Audited)
    result = task.delay()
    run_all()
    with pytest.raises(EncodeError):
        result.get(timeout=PATIENCE)
    assert result.state == "FAILURE"
    assert [how for how, *_ in task.seen] == ["failure"]
    with pytest.raises(EncodeError) as refusal:
        tasks.add.delay(REFUSED[what])
    assert isinstance(refusal.value, PayloadError)


def test_one_whose_result_is_ignored_does_not_fail(declare: Callable[..., Any]) -> None:
    def given() -> Any:
        return {1}

    task = declare(given, ignore_result=True)
    result = task.delay()
    step = chain(task.s(), tasks.add.s()).delay()
    run_all()
    assert result.get(timeout=PATIENCE) is None
    with pytest.raises(EncodeError):
        step.get(timeout=PATIENCE)


def test_eager_tasks_may_return_anything() -> None:
    @shared_task(shared=False, name="project.eager_set")
    def given() -> Any:
        return {1}

    assert given.apply().get() == {1}
