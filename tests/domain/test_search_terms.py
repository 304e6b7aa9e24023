"""The language of the search box."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.search_terms import (
    MOST_TERMS,
    Argument,
    Terms,
    near_terms,
    parsed,
    term,
)

KINDS = ("type", "tag", "error")


@pytest.mark.parametrize(
    ("text", "numbers"), [("7", [7]), ("#7 8", [7, 8]), ("9" * 50, [int("9" * 40)]), ("", [])]
)
def test_numbers_are_ids(text: str, numbers: list[int]) -> None:
    terms = parsed(text, KINDS)
    assert (terms.numbers, terms.unknown) == (numbers, [])


def test_kinds_have_values_which_may_be_in_quotes() -> None:
    terms = parsed(r'type:app.noop tag:vip tag:"two words" error:"a \"b\" \\ c"', KINDS)
    assert terms.of("type") == ["app.noop"]
    assert terms.of("tag") == ["vip", "two words"]
    assert terms.of("error") == [r'a "b" \ c']
    assert (terms.unknown, terms.arguments, terms.numbers) == ([], [], [])


@pytest.mark.parametrize(
    "text", ["noop", "type:", ":7", "typ:app.noop", '"type:a"', "a..b:7", "²", 'a":7']
)
def test_what_is_not_understood_is_kept(text: str) -> None:
    terms = parsed(text, KINDS)
    assert terms.unknown == [text]
    assert (terms.numbers, terms.kinds, terms.arguments) == ([], {}, [])


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("customer_id:42", ("customer_id",), (42, "42")),
        ("args.order.id:7", ("order", "id"), (7, "7")),
        ("args.type:mail", ("type",), ("mail",)),
        ('customer_id:"42"', ("customer_id",), ("42",)),
        ("price:-3.50", ("price",), (-3.5, "-3.50")),
        ("express:true", ("express",), (True, "true")),
        ("note:null", ("note",), (None, "null")),
        ("at:12:30", ("at",), ("12:30",)),
        ("code:007", ("code",), ("007",)),
        ('note:""', ("note",), ("",)),
        ("id:" + "9" * 5000, ("id",), ("9" * 5000,)),
    ],
)
def test_any_other_name_is_an_argument(
    text: str, path: tuple[str, ...], values: tuple[Any, ...]
) -> None:
    assert parsed(text, KINDS, arguments=True).arguments == [Argument(path, values)]
    assert parsed(text, KINDS).unknown == [text]


def test_only_more_terms_than_a_search_takes_are_too_many() -> None:
    """Ids do not count."""
    most = "7 " * 30 + "tag:vip " * MOST_TERMS
    assert parsed(most, KINDS) == Terms(numbers=[7] * 30, kinds={"tag": ["vip"] * MOST_TERMS})
    assert not parsed(most, KINDS).too_many
    assert parsed(most + "tag:vip", KINDS) == Terms(too_many=True)
    assert parsed("tag:vip " * (MOST_TERMS + 1), KINDS).too_many


def test_an_argument_is_looked_for_alone_and_in_a_list() -> None:
    (argument,) = parsed("order.id:7", (), arguments=True).arguments
    assert list(argument.documents()) == [
        {"order": {"id": 7}},
        {"order": {"id": "7"}},
        {"order": {"id": [7]}},
        {"order": {"id": ["7"]}},
    ]


def test_a_path_has_at_most_ten_names() -> None:
    assert parsed(".".join("abcdefghij") + ":1", (), arguments=True).arguments
    assert parsed(".".join("abcdefghijk") + ":1", (), arguments=True).unknown


@pytest.mark.parametrize("path", [("api_token",), ("card", "TOKEN"), ("tokens", "first")])
def test_an_argument_is_secret_if_a_name_of_its_path_is(path: tuple[str, ...]) -> None:
    assert Argument(path, (1,)).is_secret(["token"])
    assert not Argument(path, (1,)).is_secret(["password"])


@pytest.mark.parametrize("value", ["vip", "two words", 'say "hi"', "back\\slash", "a:b", " ", "é"])
def test_a_term_is_read_as_it_was_written(value: str) -> None:
    assert parsed(term("tag", value), KINDS).of("tag") == [value]


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("type:app.nop", ["type:app.noop"]),
        ("type:app. tga:vip", ["tag:vip"]),
        ('tga:"two words"', ['tag:"two words"']),
        ("other:app.noop", ["app.noop"]),
        ("app.nop", ["app.noop"]),
        ("tag:vop", []),
        ("type:app. app.noop", []),
        ("typ: :app zebra", []),
        ("z z z z z app.nop", []),
    ],
)
def test_terms_that_may_be_meant_are_of_a_known_kind_or_name(text: str, near: list[str]) -> None:
    assert near_terms(text, {"type": ["app.noop"], "tag": [], "": ["app.noop"]}) == near
