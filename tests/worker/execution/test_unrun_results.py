"""What a handler gave back is work that nobody has done: no success, and no second attempt."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from django.utils.functional import SimpleLazyObject

from django_jobs.domain.outcomes import Failed, Succeeded
from tests.app.models import Effect
from tests.worker.attempts import Desk


async def send() -> None:
    raise AssertionError("nobody runs this")


def numbers() -> Iterator[int]:
    raise AssertionError("nobody runs this")
    yield 1


async def async_numbers() -> AsyncIterator[int]:
    raise AssertionError("nobody runs this")
    yield 1


def sync_decorator(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def inner(*args: Any, **options: Any) -> Any:
        return handler(*args, **options)

    return inner


def forgot_to_await() -> Awaitable[None]:
    return send()


async def forgot_to_await_in_async() -> Awaitable[None]:
    return send()


async def left_a_task() -> Awaitable[None]:
    return asyncio.get_running_loop().create_future()


def gave_a_generator() -> Iterator[int]:
    return numbers()


def gave_an_async_generator() -> AsyncIterator[int]:
    return async_numbers()


@pytest.mark.parametrize(
    "handler, problem",
    [
        (forgot_to_await, "returned the coroutine send"),
        (forgot_to_await_in_async, "returned the coroutine send"),
        (left_a_task, "returned a Future"),
        (sync_decorator(send), "a decorator around an async handler"),
        (gave_a_generator, "returned the generator numbers"),
        (sync_decorator(numbers), "list(...)"),
        (gave_an_async_generator, "returned the async generator async_numbers"),
    ],
)
def test_work_that_was_given_back_and_not_done_is_a_final_failure(
    desk: Desk, handler: Callable[..., Any], problem: str
) -> None:
    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert outcome.error.type == "NeverRan"
    assert problem in outcome.error.message


def no_user() -> Any:
    raise LookupError("its user was deleted")


def gave_a_lazy_object() -> Any:
    return SimpleLazyObject(no_user)


async def gave_a_lazy_object_in_async() -> Any:
    return SimpleLazyObject(no_user)


@pytest.mark.parametrize("handler", [gave_a_lazy_object, gave_a_lazy_object_in_async])
def test_a_result_that_raises_when_it_is_looked_at_is_a_success_with_a_note(
    desk: Desk, handler: Callable[..., Any]
) -> None:
    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Succeeded)
    assert "its user was deleted" in outcome.not_stored


def test_earlier_writes_of_an_exactly_once_handler_are_rolled_back(desk: Desk) -> None:
    def write_and_forget() -> Awaitable[None]:
        Effect.objects.create(note="half")
        return send()

    (outcome,) = desk.run(write_and_forget, delivery="exactly_once")
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert not Effect.objects.exists()
