"""Templates of names, and what a concurrency key may be."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import Concurrency
from django_jobs.domain.concurrency import HIGHEST_LIMIT, literal, name_problem, template_of
from django_jobs.domain.gates import OnConflict
from django_jobs.domain.payload import encode

NAMES = st.from_regex(r"\A[a-z_]{1,9}\Z")


@given(st.lists(st.tuples(st.text(), NAMES)), st.text())
def test_a_template_is_filled_as_str_format_fills_it(
    pairs: list[tuple[str, str]], last: str
) -> None:
    def escaped(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    text = "".join(f"{escaped(before)}{{{name}}}" for before, name in pairs) + escaped(last)
    arguments = {name: f"<{number}>" for number, (_, name) in enumerate(pairs)}
    template = template_of(text)
    assert list(template.names) == [name for _, name in pairs]
    assert template.fill(arguments) == text.format(**arguments)


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{a:{b}}", "{a b}", "{ a}", "{a!s}"),
        *("{", "}", "{a", "a}", "{a}}", "{a!}"),
    ],
)
def test_braces_hold_the_name_of_an_argument_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match="is not a template: "):
        template_of(text)


@given(st.text())
def test_a_literal_is_filled_with_itself(text: str) -> None:
    assert literal(text).fill({}) == text


@pytest.mark.parametrize(
    ("value", "filled"), [("a", "k:a"), (7, "k:7"), (-0.5, "k:-0.5"), (True, "k:True"), ("", "k:")]
)
def test_text_and_numbers_fill_a_template(value: Any, filled: str) -> None:
    assert template_of("k:{a}").fill({"a": value}) == filled


class Region(str, Enum):  # noqa: UP042 — str() of a member of StrEnum is its value
    EU = "eu"


class Level(int, Enum):
    HIGH = 3


class Rate(float, Enum):
    HALF = 0.5


@pytest.mark.parametrize("value", [Region.EU, Level.HIGH, Rate.HALF])
def test_a_member_of_an_enumeration_fills_a_template_as_it_is_stored(value: Any) -> None:
    stored = json.loads(encode({"a": value}, max_bytes=100))
    template = template_of("{a}")
    assert template.fill({"a": value}) == template.fill(stored)
    assert type(template.fill({"a": value})) is str


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "None"), ({}, "a dict"), ([1], "a list"), ((), "a tuple"), (b"", "a bytes")],
)
def test_no_other_value_fills_a_template(value: Any, shown: str) -> None:
    with pytest.raises(ValueError, match=f"the argument 'a' is {shown}, not text or a number"):
        template_of("k:{a}").fill({"a": value})


def test_a_missing_argument_fills_no_template() -> None:
    with pytest.raises(ValueError, match="the argument 'a' is missing"):
        template_of("k:{a}").fill({})


def test_a_key_has_a_limit_of_one_and_its_jobs_wait() -> None:
    assert Concurrency("k") == Concurrency("k", limit=1, on_conflict=OnConflict.WAIT)


@pytest.mark.parametrize("limit", [0, -1, True, HIGHEST_LIMIT + 1])
def test_a_limit_is_at_least_one(limit: int) -> None:
    with pytest.raises(ValueError, match="limit is a whole number from 1 to 2,147,483,647, not"):
        Concurrency("k", limit=limit)


@pytest.mark.parametrize("limit", ["1", 1.5, None])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(
        TypeError, match=r"limit is a whole number .*, or a function of the payload"
    ):
        Concurrency("k", limit=limit)


def test_an_unknown_conflict_is_refused_with_a_similar_one() -> None:
    with pytest.raises(ValueError, match=r"no choice 'discrad'; did you mean 'discard'[?] known"):
        Concurrency("k", on_conflict="discrad")
    with pytest.raises(ValueError, match="no choice None; known are: wait, discard, "):
        Concurrency("k", on_conflict=None)  # type: ignore[arg-type]


def test_a_key_is_text_or_a_function() -> None:
    assert Concurrency(lambda payload: "k").limit == 1
    with pytest.raises(TypeError, match=r"^key is async; write a plain function"):
        Concurrency(asyncio.sleep)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^limit does not take one argument, the payload"):
        Concurrency("k", limit=lambda: 2)  # type: ignore[misc,arg-type]
    with pytest.raises(TypeError, match="key is text or a function of the payload, not 7"):
        Concurrency(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a template"):
        Concurrency("{a.b}")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("acme", None),
        ("a" * 9, None),
        ("Zoë\xa0☃", None),
        ("", "has 0 characters, not 1 to 9"),
        ("a" * 10, "has 10 characters, not 1 to 9"),
        ("a\n", "has a control character"),
        ("a\x00", "has a control character"),
        ("a\x7f", "has a control character"),
        ("a\x85", "has a control character"),
        ("a\ud800", "has a lone surrogate"),
        (7, "is an int, not text"),
    ],
)
def test_a_name_is_short_text_without_control_characters(name: Any, problem: str | None) -> None:
    found = name_problem(name, 9)
    assert (found is None) is (problem is None)
    assert (found or "").startswith(problem or "")
