"""A cancel is raised in a handler by what it calls of its run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_jobs import Cancelled
from django_jobs.domain import outcomes
from django_jobs.domain.outcomes import Failed, Succeeded
from django_jobs.models import Job, Progress, Receipt
from tests.app.jobs import noop
from tests.app.long_jobs import this_run
from tests.app.models import Effect
from tests.worker.attempts import Desk

CANCELLED = outcomes.Cancelled(reason="cancelled while running")


def ask() -> None:
    """As the heartbeat does when it has read of a cancel."""
    this_run()._attempt.entry.cancel_asked = True


def call(note: str = "called") -> str:
    Effect.objects.create(job_id=0, note=note)
    return note


CALLS: dict[str, Callable[[], Any]] = {
    "progress": lambda: this_run().progress(0.5, "half"),
    "checkpoint": lambda: this_run().checkpoint({"page": 7}),
    "once": lambda: this_run().once("charge", call),
    "sleep": lambda: this_run().sleep("cooling", 3600),
    "wait_for": lambda: this_run().wait_for("approval"),
    "spawn": lambda: this_run().spawn(noop, [{}]),
    "iterate": lambda: list(this_run().iterate(Effect.objects.all())),
}


async def iterate() -> list[Effect]:
    return [row async for row in this_run().iterate(Effect.objects.all())]


ASYNC_CALLS: dict[str, Callable[[], Any]] = {
    "aonce": lambda: this_run().aonce("charge", lambda: asyncio.sleep(0)),
    "asleep": lambda: this_run().asleep("cooling", 3600),
    "await_for": lambda: this_run().await_for("approval"),
    "aspawn": lambda: this_run().aspawn(noop, [{}]),
    "iterate": iterate,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_cancel_is_raised_and_no_call_is_made(desk: Desk, name: str) -> None:
    def handler() -> str:
        ask()
        with contextlib.suppress(Exception):
            CALLS[name]()
        return "went on"

    assert desk.run(handler) == [CANCELLED]
    assert not Effect.objects.exists()
    assert not Receipt.objects.exists()
    assert Job.objects.count() == 1


@pytest.mark.parametrize("name", ASYNC_CALLS)
def test_a_cancel_is_raised_in_async_code(desk: Desk, name: str) -> None:
    async def handler() -> str:
        ask()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ASYNC_CALLS[name]())
        return "went on"

    assert desk.run(handler) == [CANCELLED]
    assert not Receipt.objects.exists()


def test_progress_is_called_in_async_code_too(desk: Desk) -> None:
    async def handler() -> None:
        ask()
        this_run().progress(0.5)

    assert desk.run(handler) == [CANCELLED]


@pytest.mark.parametrize("name", ["progress", "checkpoint"])
def test_what_was_reported_is_kept(desk: Desk, name: str) -> None:
    def handler() -> None:
        ask()
        CALLS[name]()

    assert desk.run(handler) == [CANCELLED]
    row = Progress.objects.get()
    kept = {"progress": (0.5, None), "checkpoint": (None, {"page": 7})}
    assert (row.fraction, row.checkpoint) == kept[name]


def test_a_line_that_is_logged_raises_nothing(desk: Desk) -> None:
    def handler() -> str:
        ask()
        logging.getLogger("shop").warning("cleans up")
        with pytest.raises(AttributeError):
            this_run().log("cleans up")  # type: ignore[attr-defined]
        return "went on"

    assert desk.run(handler) == [Succeeded(result='"went on"')]


def test_a_row_that_was_done_is_kept(desk: Desk) -> None:
    rows = [Effect.objects.create(job_id=0, note="row") for _ in range(3)]

    def handler() -> None:
        for row in this_run().iterate(Effect.objects.all()):
            if row == rows[1]:
                ask()

    assert desk.run(handler) == [CANCELLED]
    assert Progress.objects.get().checkpoint["iterate"]["after"] == str(rows[1].pk)


def test_a_transaction_of_the_handler_is_rolled_back_with_its_checkpoint(desk: Desk) -> None:
    def handler() -> None:
        with transaction.atomic():
            call()
            ask()
            this_run().checkpoint(1)

    assert desk.run(handler) == [CANCELLED]
    assert not Effect.objects.exists()


def test_an_answer_is_returned_before_the_cancel_is_raised(desk: Desk) -> None:
    given = []

    def handler() -> None:
        given.append(this_run().once("charge", lambda: ask() or "charged"))  # type: ignore[func-returns-value]
        this_run().progress(1)

    assert desk.run(handler) == [CANCELLED]
    assert given == ["charged"]
    assert Receipt.objects.get().answer == "charged"


def test_a_handler_that_catches_it_and_returns_has_succeeded(desk: Desk) -> None:
    def handler() -> str:
        ask()
        try:
            this_run().progress(0.5)
        except Cancelled:
            return "cleaned up"
        raise AssertionError

    assert desk.run(handler) == [Succeeded(result='"cleaned up"')]


def test_a_failure_beside_it_does_not_hide_it(desk: Desk) -> None:
    async def fail() -> None:
        raise ValueError("beside")

    async def handler() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            ask()
            this_run().progress(0.5)

    assert desk.run(handler) == [CANCELLED]


@pytest.mark.parametrize("name", ["progress", "checkpoint", "once", "iterate"])
def test_a_handler_that_is_only_asked_goes_on(desk: Desk, name: str) -> None:
    def handler() -> bool:
        ask()
        CALLS[name]()
        return this_run().should_stop()

    assert desk.run(handler, on_cancel="ask") == [Succeeded(result="true")]


def test_a_bad_report_is_told_before_the_cancel(desk: Desk) -> None:
    def handler() -> None:
        ask()
        this_run().progress(7)

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Failed)
    assert outcome.error.type == "ValueError"
