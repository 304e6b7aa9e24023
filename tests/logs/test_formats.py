"""Lines of pairs, and of JSON: one per event, whatever the values hold."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import logs

Read = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def read(caplog: pytest.LogCaptureFixture) -> Iterator[Read]:
    """The JSON objects of what was logged so far."""
    logs.connect(logging.INFO)
    with caplog.at_level(logging.INFO):
        yield lambda: [json.loads(written(record)) for record in caplog.records]
    logs.disconnect()


def written(record: logging.LogRecord) -> str:
    return logs.JsonFormatter().format(record)


def test_an_event_has_its_fields_as_they_are_typed(read: Read) -> None:
    fields = {
        "worker": 7,
        "lease": 30.0,
        "queues": ["a", "b"],
        "reason": "",
        "ended": 0,
        "by": None,
    }
    logs.log_event("worker_started", logging.INFO, fields)
    (line,) = read()
    time = line.pop("time")
    assert time[10] == "T"
    assert time.endswith("Z")
    assert line == {
        "level": "INFO",
        "event": "worker_started",
        "worker": 7,
        "lease": 30.0,
        "queues": ["a", "b"],
        "ended": 0,
    }


def test_a_record_of_another_logger_has_its_message(read: Read) -> None:
    logging.getLogger("shop").warning("no such\norder: %s", 7)
    (line,) = read()
    del line["time"]
    assert line == {"level": "WARNING", "logger": "shop", "message": "no such\norder: 7"}


def test_attributes_of_a_foreign_record_are_written_as_text() -> None:
    """Such as those of a library that names its own jobs."""
    record = logging.makeLogRecord({"msg": "sent", "job_id": UUID(int=7), "queue": {"mail"}})
    line = json.loads(written(record))
    assert (line["job_id"], line["queue"]) == (str(UUID(int=7)), "{'mail'}")
    assert line["message"] == "sent"


def test_a_traceback_is_bounded_and_on_the_same_line() -> None:
    record = logging.makeLogRecord({"msg": "it failed"})
    try:
        raise ValueError("x" * 10_000)
    except ValueError:
        record.exc_info = sys.exc_info()
    text = written(record)
    assert len(text.splitlines()) == 1
    assert len(text) < 4_096
    assert json.loads(text)["exception"].startswith("Traceback")


VALUES = (
    st.text(st.characters(), max_size=400)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.lists(st.text(st.characters(), max_size=5), max_size=4)
)


@given(st.dictionaries(st.sampled_from(["error", "queue", "job_id"]), VALUES))
def test_any_value_makes_one_line_of_json(fields: dict[str, Any]) -> None:
    record = logging.makeLogRecord({"django_jobs_event": ("job_failed", fields)})
    text = written(record)
    assert text.isascii()
    assert text.isprintable()
    line = json.loads(text, parse_constant=pytest.fail)
    assert line["event"] == "job_failed"
    assert line.keys() >= {key for key, value in fields.items() if value not in (None, "")}


def test_a_long_value_is_cut() -> None:
    record = logging.makeLogRecord({"django_jobs_event": ("e", {"error": "x" * 1000})})
    assert json.loads(written(record))["error"] == "x" * 299 + "…"


def test_the_line_about_dropped_lines_is_json_too() -> None:
    handler = logs.PatientHandler()
    handler.setFormatter(logs.JsonFormatter())
    lines: list[str] = []
    handler._left_out = 2
    handler.stream = type("Stream", (), {"write": lambda _, text: lines.append(text)})()
    handler.flush = lambda: None  # type: ignore[method-assign]
    handler.emit(logging.makeLogRecord({"msg": "three"}))
    first, second = map(json.loads, lines)
    assert (first["event"], first["lines"]) == ("log_lines_left_out", 2)
    assert second["message"] == "three"


# Pairs


def test_a_list_is_logged_with_commas() -> None:
    assert logs.line("e", {"queues": ["default", "emails"]}) == "event=e queues=default,emails"
    assert logs.line("e", {"queues": ("a b", "c")}) == 'event=e queues="a b,c"'


@given(st.text(st.characters(), max_size=400))
def test_a_value_cannot_break_out_of_its_line_or_its_quotes(text: str) -> None:
    line = logs.line("job_failed", {"error": text, "queue": "default"})
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert len(line) < 4000
    parts = shlex.split(line, posix=True)
    assert parts[0] == "event=job_failed"
    assert parts[-1] == "queue=default"
    assert len(parts) == (3 if text else 2)


def test_long_values_are_cut() -> None:
    assert logs.line("e", {"error": "x" * 1000}) == f'event=e error="{"x" * 299}…"'
