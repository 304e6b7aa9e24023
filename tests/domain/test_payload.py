"""Payloads: strict, bounded JSON that PostgreSQL takes and gives back."""

from __future__ import annotations

import datetime as dt
import json
import tracemalloc
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.utils.translation import gettext_lazy
from hypothesis import given, settings
from hypothesis import strategies as st

from django_jobs.domain.payload import MAX_DEPTH, NotStorable, encode
from tests.factories import run_sql

MEBIBYTE = 1_048_576


class Color(Enum):
    RED = 1


@dataclass
class Size:
    cm: int


storable_text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable_text
)
json_values = st.recursive(
    scalars,
    lambda children: (
        st.lists(children, max_size=5) | st.dictionaries(storable_text, children, max_size=5)
    ),
    max_leaves=25,
)


def same(one: Any, other: Any) -> bool:
    """Equal, where a large float may have come back as the whole number that it stands for."""
    if isinstance(one, float):
        return float(other) == one
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@given(json_values)
def test_an_encoded_value_round_trips(value: Any) -> None:
    assert json.loads(encode(value, max_bytes=MEBIBYTE)) == value


@pytest.mark.django_db
def test_an_encoded_value_round_trips_through_postgresql() -> None:
    @settings(max_examples=60, deadline=None)
    @given(json_values)
    def round_trip(value: Any) -> None:
        text = encode(value, max_bytes=MEBIBYTE)
        ((stored,),) = run_sql("SELECT %s::jsonb::text", [text])
        assert same(value, json.loads(stored))

    round_trip()


@given(json_values, st.integers(1, 200))
def test_nothing_above_the_limit_is_let_through(value: Any, limit: int) -> None:
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    try:
        text = encode(value, max_bytes=limit)
    except NotStorable:
        return
    assert len(text.encode()) <= limit
    assert size <= limit


def test_escapes_count_towards_the_limit() -> None:
    with pytest.raises(NotStorable, match="larger than"):
        encode("\x01" * (MEBIBYTE // 6 + 100), max_bytes=MEBIBYTE)
    assert encode("\x01" * (MEBIBYTE // 6 - 100), max_bytes=MEBIBYTE)


def test_multi_byte_characters_count_towards_the_limit() -> None:
    with pytest.raises(NotStorable, match="larger than"):
        encode("🦊" * (MEBIBYTE // 4), max_bytes=MEBIBYTE)


@pytest.mark.parametrize(
    "value, path, problem",
    [
        ({"items": [0, 1, float("nan")]}, "payload.items[2]", "nan is not JSON"),
        ({"a": {"b": float("-inf")}}, "payload.a.b", "-inf is not JSON"),
        ({"note": "a\x00b"}, "payload.note", "NUL"),
        ({"note": "\ud83d"}, "payload.note", "lone surrogate"),
        ({"a\x00": 1}, "payload key", "NUL"),
        ({"a": {1: 2}}, "payload.a", "key 1 is an int"),
        ({"when": dt.datetime(2026, 1, 1)}, "payload.when", "isoformat"),
        ({"price": Decimal("1.5")}, "payload.price", "str(value)"),
        ({"id": uuid4()}, "payload.id", "str(value)"),
        ({"tags": {1, 2}}, "payload.tags", "sorted(value)"),
        ({"data": b"x"}, "payload.data", "base64"),
        ({"user": User()}, "payload.user", "primary key"),
        (
            {"orders": User.objects.all()},
            "payload.orders",
            "pass keys: list(queryset.values_list('pk'",
        ),
        ({"half": float("nan")}, "payload.half", "nan is not JSON; pass None"),
        ({"age": dt.timedelta(1)}, "payload.age", "value.total_seconds()"),
        ({"tags": frozenset({1})}, "payload.tags", "sorted(value)"),
        ({"thing": object()}, "payload.thing", "an object is not JSON"),
        ({"of": encode}, "payload.of", "a function is not JSON; pass its name"),
        ({"of": len}, "payload.of", "a builtin_function_or_method is not JSON; pass its name"),
        ({"color": Color.RED}, "payload.color", "a Color is not JSON; pass value.value"),
        ({"why": OSError("x")}, "payload.why", "an OSError is not JSON; pass str(value)"),
        ({"size": Size(1)}, "payload.size", "a Size is not JSON; pass dataclasses.asdict(value)"),
        ({"text": gettext_lazy("on")}, "payload.text", "pass str(value): it is a lazy text"),
        ({"n": 10**5000}, "payload.n", "4,200 digits"),
    ],
)
def test_values_unknown_to_json_or_postgresql_are_refused_with_their_path(
    value: Any, path: str, problem: str
) -> None:
    with pytest.raises(NotStorable) as caught:
        encode(value, max_bytes=MEBIBYTE)
    assert caught.value.path.startswith(path)
    assert problem in caught.value.problem
    assert str(caught.value) == f"{caught.value.path}: {caught.value.problem}"


def test_nesting_is_allowed_to_the_limit_and_refused_beyond() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert encode(value, max_bytes=MEBIBYTE)
    with pytest.raises(NotStorable, match="nested deeper than 64"):
        encode([value], max_bytes=MEBIBYTE)


def test_a_long_path_is_cut_in_its_middle() -> None:
    value: Any = float("nan")
    for _ in range(MAX_DEPTH - 1):
        value = {"a_rather_long_name": value}
    with pytest.raises(NotStorable) as caught:
        encode(value, max_bytes=MEBIBYTE)
    assert len(caught.value.path) < 130
    assert caught.value.path.startswith("payload.a_rather_long_name.")
    assert " … " in caught.value.path


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotStorable, match="nested deeper"):
        encode(value, max_bytes=MEBIBYTE)


def test_tuples_become_lists() -> None:
    assert encode({"a": (1, 2)}, max_bytes=MEBIBYTE) == '{"a":[1,2]}'


def test_a_value_that_is_far_too_large_is_refused_before_all_of_it_is_read() -> None:
    huge = ["x" * 1_000_000] * 300
    tracemalloc.start()
    try:
        with pytest.raises(NotStorable, match="pass its key"):
            encode(huge, max_bytes=MEBIBYTE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30_000_000
