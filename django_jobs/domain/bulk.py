"""Operations on all jobs that match: which jobs, in what state, and what was left and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from .numbers import is_whole
from .states import JobState

LARGEST_ID = 2**63 - 1
MOST_IDS = 10_000
LONGEST_TERM = 200
MOST_REASONS = 50
"""Reasons that a report lists. Any more are counted as ``OTHER_REASONS``."""
MOST_NAMED = 10
"""Jobs that a report names for each reason."""
SAME_TIME = timedelta(minutes=1)
OTHER_REASONS = "other reasons"
SURROGATE = re.compile(r"[\ud800-\udfff]")
VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d.,]*")


def _is_text(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= LONGEST_TERM
        and "\0" not in value
        and not SURROGATE.search(value)  # which has no UTF-8
    )


def _is_id(value: Any) -> bool:
    return is_whole(value) and 0 <= value <= LARGEST_ID


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and _time(value) is not None
    except (ValueError, OverflowError):
        return False


def _time(text: str) -> str | None:
    """A time as PostgreSQL reads it: Python reads weeks, too. None without a time zone."""
    time = datetime.fromisoformat(text)
    return None if time.tzinfo is None else time.astimezone(UTC).isoformat()


def _is_scope(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and value.keys() <= {"queues", "job_types"}
        and all(isinstance(names, list) and all(map(_is_text, names)) for names in value.values())
    )


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_IDS and all(map(_is_id, value))


TERMS: Mapping[str, Callable[[Any], bool]] = {
    "all": lambda value: value is True,
    "ids": _are_ids,
    "status": lambda value: value in list(JobState),
    "queue": _is_text,
    "job_type": _is_text,
    "key": _is_text,
    "tenant": _is_text,
    "schedule": _is_id,
    "workflow_run": _is_id,
    "created_since": _is_time,
    "finished_since": _is_time,
    "error": lambda value: value == "" or _is_text(value),
    "code": _is_text,
    "tag": _is_text,
    "scope": _is_scope,
}
"""What may be asked of a job, and whether a value is one. ``all`` is every job; ``error`` is the
fingerprint of its last error, empty without one, ``code`` the error code of its last run, and
``scope`` that of the user who asked for the operation."""


def checked_terms(given: Any) -> dict[str, Any]:
    """The terms ``given``, as JSON. Raises ``ValueError`` for what is no term, or no terms."""
    if not isinstance(given, Mapping) or not given:
        raise ValueError("an operation needs at least one term")
    for name, value in given.items():
        if name not in TERMS:
            raise ValueError(f"a term is one of {', '.join(TERMS)}, not {name!r}")
        if not TERMS[name](value):
            raise ValueError(f"{name!r} cannot be {str(value)[:LONGEST_TERM]!r}")
    return {
        name: _time(value) if TERMS[name] is _is_time else value for name, value in given.items()
    }


def are_same(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether terms ask for the same jobs. Times may differ by a minute."""
    moment = datetime.fromisoformat
    return some.keys() == others.keys() and all(
        value == others[name]
        or (TERMS[name] is _is_time and abs(moment(value) - moment(others[name])) <= SAME_TIME)
        for name, value in some.items()
    )


@dataclass(slots=True)
class Reasons:
    """How many jobs were left for each reason, and the first of them."""

    counts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, refused: Mapping[int, str]) -> None:
        """Count more jobs. Reasons that differ in numbers and quoted words are one."""
        for job, why in refused.items():
            reason = VARIABLE.sub("…", why)[:LONGEST_TERM]
            if reason not in self.counts and len(self.counts) >= MOST_REASONS:
                reason = OTHER_REASONS
            entry = self.counts.setdefault(reason, {"count": 0, "jobs": []})
            entry["count"] += 1
            if len(entry["jobs"]) < MOST_NAMED:
                entry["jobs"].append(job)
