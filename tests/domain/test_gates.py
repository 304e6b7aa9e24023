"""The gates of a job as one text."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.gates import ALONE, Gates, LoneGate, OnConflict, parse

NAMES = st.none() | st.text(min_size=1)
GATES = st.builds(
    Gates,
    tenant=NAMES,
    queue=st.sampled_from(["default", "bulk"]),
    key=NAMES,
    limit=st.integers(1, 2**31 - 1),
    on_conflict=st.sampled_from(OnConflict),
    resources=st.lists(st.text(min_size=1), unique=True).map(tuple),
)
ALONE_GATES = st.one_of(
    st.builds(Gates, queue=st.just("a.b"), key=st.text(min_size=1), limit=st.integers(1, 2**31)),
    st.builds(Gates, queue=st.just("a.b"), resources=st.sampled_from([("a",), ("smtp.eu",)])),
    st.builds(Gates, queue=st.just("a.b"), tenant=st.text(min_size=1)),
)


@given(GATES)
def test_gates_are_read_as_they_were_written(gates: Gates) -> None:
    assert parse(gates.text) == gates


@given(GATES | ALONE_GATES)
def test_the_patterns_find_gates_that_are_alone_and_the_limit_of_a_key(gates: Gates) -> None:
    found = {gate: re.match(pattern, gates.text) for gate, pattern in ALONE.items()}
    assert {gate for gate in found if found[gate]} <= {gates.alone}
    for_key = found[LoneGate.KEY]
    if for_key is None:
        assert gates.alone is not LoneGate.KEY or gates.limit >= 10**9
    else:
        assert int(for_key[1]) == gates.limit
    is_named = all('"' not in name for name in gates.resources)  # others are refused
    if gates.alone in (LoneGate.RESOURCE, LoneGate.TENANT) and is_named:
        assert found[gates.alone]


@given(GATES, GATES)
def test_two_jobs_wait_in_one_line_only_if_all_their_gates_are_equal(
    first: Gates, second: Gates
) -> None:
    assert (first.text == second.text) is (first == second)


@pytest.mark.parametrize(
    "text", ["", "{}", "null", "7", "[]", json.dumps(["q", [], None, "k", 1, "never"])]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not name gates"):
        parse(text)
