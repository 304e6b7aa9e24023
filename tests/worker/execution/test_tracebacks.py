"""A traceback begins with the handler, and is whole where the worker itself fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from django_jobs import current_run
from django_jobs.domain.outcomes import Failed
from django_jobs.worker.execution import handler_call
from tests.worker.attempts import Desk

pytestmark = pytest.mark.django_db


def deeper() -> NoReturn:
    raise ValueError("no such order")


def plain() -> None:
    deeper()


def inside_once() -> None:
    run = current_run()
    assert run is not None
    run.once("charge", deeper)


def with_a_cause() -> None:
    try:
        deeper()
    except ValueError as error:
        raise RuntimeError("the order is gone") from error


def nothing() -> None:
    """Succeed."""


async def on_the_loop() -> None:
    await asyncio.sleep(0)
    await asyncio.gather(asyncio.to_thread(deeper))


def functions(outcome: Any) -> list[str]:
    """The functions of the frames, each with its file."""
    assert isinstance(outcome, Failed)
    return re.findall(r'File ".*?/?([^/"]+)", line \d+, in (\w+)', outcome.error.traceback)


HERE = "test_tracebacks.py"


@pytest.mark.parametrize("hooks", [[], ["tests.app.hooks.locale"]])
@pytest.mark.parametrize(
    ("handler", "delivery"),
    [(plain, "at_least_once"), (plain, "exactly_once"), (inside_once, "at_least_once"),
     (on_the_loop, "at_least_once")],
)  # fmt: skip
def test_it_begins_with_the_handler(
    desk: Desk, handler: Callable[[], Any], delivery: str, hooks: list[str], settings: Any
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HOOKS": hooks}
    (outcome,) = desk.run(handler, delivery=delivery)
    first, *_, last = functions(outcome)
    assert (first, last) == ((HERE, handler.__name__), (HERE, "deeper"))


def test_the_causes_begin_with_the_handler_too(desk: Desk) -> None:
    (outcome,) = desk.run(with_a_cause)
    assert functions(outcome) == [(HERE, "with_a_cause"), (HERE, "deeper"), (HERE, "with_a_cause")]


def test_it_is_whole_if_the_worker_fails(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: Any, result: Any) -> NoReturn:
        raise KeyError("a bug of the worker")

    broken.__code__ = broken.__code__.replace(co_filename=handler_call.__file__)
    monkeypatch.setattr(handler_call, "_success", broken)
    (outcome,) = desk.run(nothing)
    assert functions(outcome)[0] == ("handler_call.py", "_call")
    assert functions(outcome)[-1] == ("handler_call.py", "broken")
