"""Every promise has a test that is there, and its numbers are those that are tested."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from django_jobs.conf import Conf
from tests.chaos.recovery import CRASH, DRAINED, OUTAGE, PROMISED
from tests.chaos.timing import DRAIN

ROOT = Path(__file__).resolve().parent.parent
PROMISES = (ROOT / "docs" / "promises.md").read_text()
THREATS = (ROOT / "docs" / "threat-model.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    rules = [number for number, line in enumerate(lines) if set(line) <= set("|- ")]
    heads = {number - 1 for number in rules}
    return [row for number, row in enumerate(cells) if number not in heads.union(rules)]


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file; none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(file.read_text()))
    return frozenset(
        node.name for node in nodes if isinstance(node, functions) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("row", rows(PROMISES), ids=lambda row: row[0][:60])
def test_each_promise_names_its_tests_and_its_limits(row: list[str]) -> None:
    promise, shown_by, not_promised = row
    assert promise.endswith(".")
    assert TEST.search(shown_by), "a promise without a test"
    assert TEST.sub("", shown_by).strip() == "", "something else than tests"
    assert not_promised


@pytest.mark.parametrize("text", [PROMISES, THREATS], ids=["promises", "threat-model"])
def test_every_test_that_a_page_names_is_there(text: str) -> None:
    named = TEST.findall(text)
    assert len(named) > 10
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []
    assert len(re.findall(r"`tests/", text)) == len(named), "a name that is not written in full"


def test_every_defence_has_its_test() -> None:
    table = THREATS.split("\n## What is defended\n", 1)[1].split("\n## ", 1)[0]
    assert rows(table)
    for row in rows(table):
        assert TEST.search(row[-1]), row[0]


def test_the_recovery_objectives_are_the_numbers_that_the_chaos_test_measures() -> None:
    default = Conf()
    after = default.sweep_seconds + default.poll_seconds
    lost = f"within lease + {after:g} s, which is {default.lease_seconds + after:g} s by default"
    assert lost in PROMISES
    assert f"taken up again within {PROMISED[CRASH]:g} s" in PROMISES
    assert f"comes within {PROMISED[OUTAGE]:g} s" in PROMISES
    assert f"its time-out + {PROMISED[DRAINED] - DRAIN - 1:g} s" in PROMISES  # one: the machine's
