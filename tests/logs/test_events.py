"""The table of events holds for the code and for the page of the documentation."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_jobs
from django_jobs.domain.states import RunState
from django_jobs.logs.events import EVENTS, RESERVED, TRACE
from tests.logs.schema import problem

PACKAGE = Path(django_jobs.__file__).parent
PAGE = PACKAGE.parent / "docs" / "reference" / "logging.md"
SENDERS = {"emit", "emit_throttled", "emit_after_commit", "log_event", "_log"}
ROW = re.compile(r"^\| (`[^|]+) \| (`[^|]+) \|(?: ([^|]*) \|)? ([^|]+) \|$", re.MULTILINE)


def calls() -> Iterator[tuple[Path, str, ast.Call]]:
    """Each call that sends an event by its name."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            sends = ast.unparse(node.func).rpartition(".")[2] in SENDERS
            sends |= ast.unparse(node.func) == "worker_event.send_robust"
            name = node.args[0]
            if sends and isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield path, name.value, node


def test_each_event_of_the_table_is_sent_and_no_other_one() -> None:
    sent = {name for _, name, _ in calls()} | {f"job_{outcome}" for outcome in RunState}
    assert sent | {"job_dead", "log_lines_left_out"} == set(EVENTS)


def test_each_event_is_sent_at_its_level_with_its_keys() -> None:
    for path, name, call in calls():
        levels = re.findall(r"logging\.(\w+)", ast.unparse(call))
        known = {logging.getLevelName(level) for level in EVENTS[name].levels}
        assert set(levels) <= known, f"{path}: {name}"
        keys = {one.arg for one in call.keywords if one.arg} - {"level", "fields", "exc_info"}
        assert keys <= set(EVENTS[name].keys), f"{path}: {name}"


def test_an_event_of_a_job_has_its_attempt_and_its_trace() -> None:
    for name, event in EVENTS.items():
        assert ("job_id" in event.keys) == ("attempt" in event.keys), name
        assert ("attempt" in event.keys) == (set(TRACE) <= set(event.keys)), name


def test_no_key_is_one_of_the_line_itself() -> None:
    for name, event in EVENTS.items():
        assert not RESERVED & set(event.keys), name


def test_the_page_has_the_table() -> None:
    rows: dict[str, tuple[str, ...]] = {}
    for names, levels, keys, when in ROW.findall(PAGE.read_text()):
        assert len(when) > 10
        for name in re.findall(r"`(\w+)`", names):
            assert name not in rows
            rows[name] = (levels, keys)
    assert rows.keys() == EVENTS.keys()
    for name, (levels, keys) in rows.items():
        event = EVENTS[name]
        shown = [logging.getLevelName(level) for level in event.levels]
        assert re.findall(r"`(\w+)`", levels) == shown, name
        if not name.startswith("job_") or keys:  # those of jobs have one paragraph for all
            own = [key for key in event.keys if key not in TRACE]
            assert re.findall(r"`(\w+)`", keys) == own, name


def test_the_page_lists_the_keys_of_jobs() -> None:
    paragraph = PAGE.read_text().partition("These events have the keys")[2].partition("\n\n")[0]
    for name in ("job_succeeded", "job_dead"):
        own = {key for key in EVENTS[name].keys if key not in TRACE}
        assert own <= set(re.findall(r"`(\w+)`", paragraph))


@pytest.mark.parametrize(
    "name, level, keys",
    [
        ("nonsense", logging.INFO, []),
        ("fenced", logging.INFO, []),
        ("fenced", logging.ERROR, ["nonsense"]),
    ],
)
def test_what_the_table_does_not_have_is_a_problem(name: str, level: int, keys: list[str]) -> None:
    assert problem(name, level, keys)
    assert not problem("fenced", logging.ERROR, ["worker"])
