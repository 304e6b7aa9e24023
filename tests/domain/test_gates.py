"""The gates of a job as one text."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.gates import KEY_ALONE, Gates, OnConflict, parse

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


@given(GATES)
def test_gates_are_read_as_they_were_written(gates: Gates) -> None:
    assert parse(gates.text) == gates


@given(
    GATES
    | st.builds(
        Gates, queue=st.just("a.b"), key=st.text(min_size=1), limit=st.integers(1, 2**31 - 1)
    )
)
def test_the_pattern_finds_a_key_alone_and_its_limit(gates: Gates) -> None:
    found = re.match(KEY_ALONE, gates.text)
    assert (found is not None) is (gates.is_key_alone and gates.limit < 10**9)
    assert found is None or int(found[1]) == gates.limit


@given(GATES, GATES)
def test_two_jobs_wait_in_one_line_only_if_all_their_gates_are_equal(
    first: Gates, second: Gates
) -> None:
    assert (first.text == second.text) is (first == second)


@pytest.mark.parametrize(
    "text", ["", "{}", "null", "7", "[]", json.dumps([None, "q", "k", 1, "never", []])]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not name gates"):
        parse(text)
