"""The catalogue is complete, and the tests that it names are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from .catalogue import CATALOGUE, PARTS

PROJECT = Path(__file__).resolve().parents[2]
PROMISED = {"W": 21, "S": 10, "D": 26, "B": 23, "N": 4, "A": 9}
IDS = [f"{letter}{number}" for letter, last in PROMISED.items() for number in range(1, last + 1)]


@cache
def names_in(path: str) -> frozenset[str]:
    """The tests of a file, which is read and not imported."""
    tree = ast.parse((PROJECT / path).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def test_every_fault_is_there_exactly_once() -> None:
    assert sorted(name for part in PARTS for name in part) == sorted(IDS)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_each_fault_names_existing_tests_or_the_reason_for_none(name: str) -> None:
    fault = CATALOGUE[name]
    assert fault.what
    assert fault.tests or fault.cannot
    assert len(set(fault.tests)) == len(fault.tests)
    for test in fault.tests:
        path, _, function = test.partition("::")
        assert (PROJECT / path).is_file(), test
        assert function in names_in(path), test
    if fault.cannot:
        assert re.fullmatch(r"[A-Z].{20,}\.", fault.cannot, re.DOTALL), "a sentence says why"
