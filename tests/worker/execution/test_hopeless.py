"""Mistakes in the code that no second attempt heals, and results that are lost without an error."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from django_jobs.domain.outcomes import Failed, Succeeded
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job
from django_jobs.signals import worker_event
from tests.app.models import Effect
from tests.factories import declared, enqueue_and_claim, heard, settle_one
from tests.worker.attempts import Desk


def takes(number: int) -> None:
    """Its decorators call it otherwise."""


def without_number(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def inner(**payload: Any) -> Any:
        return handler()

    return inner


def with_more(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def inner(number: int) -> Any:
        return handler(number=number, user="olga")

    return inner


def replaced(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def inner() -> Any:
        return handler()

    return inner


async def use_the_orm() -> None:
    Effect.objects.count()


def number_of_nothing() -> None:
    int(None)  # type: ignore[call-overload]


def call_wrongly() -> None:
    takes()  # type: ignore[call-arg]


@pytest.mark.parametrize("decorate", [without_number, with_more, replaced])
def test_a_call_that_does_not_fit_the_handler_is_not_tried_again(
    desk: Desk, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    with declared(decorate(takes), name="app.takes") as job_type:
        held = enqueue_and_claim(job_type, 7)
        outcome = desk.make(held)
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert outcome.error.type == "TypeError"


def test_the_orm_in_an_async_handler_is_not_tried_again_and_can_be_replayed(desk: Desk) -> None:
    with declared(use_the_orm, name="app.use_the_orm") as job_type:
        held = enqueue_and_claim(job_type)
        outcome = desk.make(held)
        assert isinstance(outcome, Failed)
        assert outcome.final
        settle_one(held, outcome)
        job = Job.objects.get()
        assert (job.status, job.attempt) == ("dead", 1)
        assert job_operations.replay([job.pk], check=lambda job: None)
    assert Job.objects.get().status == "ready"


@pytest.mark.parametrize("handler", [number_of_nothing, call_wrongly])
def test_a_type_error_inside_a_handler_is_retried(desk: Desk, handler: Callable[[], None]) -> None:
    """It may come of the data."""
    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Failed)
    assert not outcome.final


def test_retry_on_that_names_the_class_wins(desk: Desk) -> None:
    (outcome,) = desk.run(use_the_orm, retry_on=SynchronousOnlyOperation)
    assert isinstance(outcome, Failed)
    assert not outcome.final


RESULTS = {"huge": "x" * 5_000_000, "object": object(), "nan": float("nan"), "nul": "a\x00b"}


@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_that_cannot_be_stored_is_replaced_by_a_note(desk: Desk, kind: str) -> None:
    def answer() -> object:
        return RESULTS[kind]

    (outcome,) = desk.run(answer)
    assert isinstance(outcome, Succeeded)
    assert list(json.loads(outcome.result or "")) == ["not_stored"]
    assert outcome.not_stored


def test_a_result_that_cannot_be_stored_is_logged_once_for_each_type(desk: Desk) -> None:
    def answer() -> object:
        return {1, 2}

    with heard(worker_event) as events:
        outcomes = desk.run(answer, answer)
    assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
    (event,) = [one for one in events if one["sender"] == "result_not_stored"]
    assert event["level"] == logging.WARNING
    assert event["fields"]["job_type"] == "app.handler"
    assert "a set is not JSON" in event["fields"]["reason"]
