"""Arguments of all kinds go into a payload and come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_jobs import PayloadError
from django_jobs.backend.declared import Arguments


def by_position(first: int, second: int = 2, /, third: int = 3, *, fourth: int = 4) -> Any:
    return first, second, third, fourth


def the_rest(first: int = 1, *others: int, last: int = 9, **named: int) -> Any:
    return first, others, last, named


@pytest.mark.parametrize(
    "function, args, kwargs, payload",
    [
        (by_position, [1], {}, {"first": 1}),
        (by_position, [1, 5], {"third": 6}, {"first": 1, "second": 5, "third": 6}),
        (by_position, [1, 5, 7], {"fourth": 8}, {"first": 1, "second": 5, "third": 7, "fourth": 8}),
        (the_rest, [], {}, {}),
        (the_rest, [5, 6, 7], {"last": 8}, {"first": 5, "others": [6, 7], "last": 8}),
        (the_rest, [5], {"name": 1}, {"first": 5, "name": 1}),
    ],
)
def test_arguments_are_stored_by_name_and_called_as_given(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], payload: dict[str, Any]
) -> None:
    arguments = Arguments.of(function, takes_context=False)
    assert arguments.named(args, kwargs, "here") == payload
    assert arguments.as_given(payload, arguments.count(args)) == (args, kwargs)
    positional, named = arguments.for_call(payload)
    assert function(*positional, **named) == function(*args, **kwargs)


def test_defaults_fill_the_gap_before_what_has_a_place() -> None:
    arguments = Arguments.of(the_rest, takes_context=False)
    positional, named = arguments.for_call({"others": [6]})
    assert the_rest(*positional, **named) == (1, (6,), 9, {})


def test_a_name_that_stands_for_a_place_is_refused() -> None:
    arguments = Arguments.of(the_rest, takes_context=False)
    for args, kwargs in (([1], {"first": 2}), ([], {"others": 2})):
        with pytest.raises(PayloadError, match="is given twice"):
            arguments.named(args, kwargs, "here")


def test_too_many_by_position_are_refused() -> None:
    arguments = Arguments.of(by_position, takes_context=False)
    with pytest.raises(PayloadError, match="takes 3 arguments by position, not 4"):
        arguments.named([1, 2, 3, 4], {}, "here")


def test_the_context_is_no_argument() -> None:
    arguments = Arguments.of(lambda context, word: None, takes_context=True)
    assert list(arguments.signature.parameters) == ["word"]
