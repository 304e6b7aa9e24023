"""A plugin of pytest: runs one test several times, or last of the tests of its file.

pytest-repeat does the first by a parameter, which changes the ids: ``test_a[x]`` of a command line
is no longer found. And it does not repeat the methods of a ``TestCase``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat", type=int, help="run each test this often")
    parser.addoption("--last", metavar="NAME", help="run no test after this one of the file")
    parser.addoption("--results", type=Path, help="the file for the result of each test")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("results"):
        config.pluginmanager.register(Results(path))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    yield  # after all that reorder them
    if name := config.getoption("last"):
        places = [place for place, item in enumerate(items) if is_named(item.nodeid, name)]
        items[:] = items[: max(places, default=-1) + 1]
    if times := config.getoption("repeat"):
        items[:] = [_copy(item) for _ in range(times) for item in items]


def is_named(nodeid: str, name: str) -> bool:
    """Whether it is that test of its file, with any parameters if ``name`` has none."""
    _, _, own = nodeid.partition("::")
    return own == name or own.startswith(f"{name}[")


def _copy(item: pytest.Item) -> pytest.Item:
    """An item with its own fixtures: pytest keeps those of an item that is followed by itself."""
    other: Any = copy.copy(item)
    if getattr(other, "cls", None):  # made on the next access
        vars(other).pop("_instance", None)
        vars(other).pop("_obj", None)
    if hasattr(other, "_initrequest"):
        other._initrequest()
    return other


class Results:
    """Writes the outcome of each test, and the seconds of its call: the first setup makes a
    database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcome, self._seconds = "passed", 0.0

    def pytest_runtest_logstart(self) -> None:
        self._outcome, self._seconds = "passed", 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._seconds = report.duration
        if report.failed or (report.skipped and self._outcome == "passed"):
            self._outcome = report.outcome

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        line = {"nodeid": nodeid, "outcome": self._outcome, "seconds": self._seconds}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
