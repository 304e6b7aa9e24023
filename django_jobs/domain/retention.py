"""What is kept of finished jobs: those up to an age, and of the dead ones a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .durations import seconds_of
from .numbers import is_whole
from .states import FINAL, JobState

MOST_KEPT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of one status: jobs up to ``age`` seconds after their end, and only the newest
    ``number`` of them. None is no limit."""

    age: float | None = None
    number: int | None = None


ALL = Kept()

NOT_OF_JOBS = ("runs", "workflows")
"""Keys of the setting that are ages, and no statuses of jobs."""


def kept_by_status(given: Mapping[Any, Any]) -> dict[str, Kept]:
    """A retention as people write it, such as ``{"succeeded": "7d", "dead": {"number": 1000}}``.

    Raises ``ValueError`` for a value that cannot be read.
    """
    for status in given:
        if status not in FINAL:
            known = ", ".join(sorted(FINAL))
            raise ValueError(f"its keys may be {known}, not {status!r}")
    return {str(status): _kept(status, value) for status, value in given.items()}


def _kept(status: str, value: Any) -> Kept:
    if not isinstance(value, Mapping):
        return Kept(age=seconds_of(value))
    if status != JobState.DEAD:
        raise ValueError(f'only dead jobs have a number: write "{status}" with an age, such as 7d')
    for key in value:
        if key not in ("age", "number"):
            raise ValueError(f'the keys of "{status}" may be age, number, not {key!r}')
    number = value.get("number")
    if number is not None and not (is_whole(number) and 1 <= number <= MOST_KEPT):
        raise ValueError(
            f'"number" must be a whole number from 1 to {MOST_KEPT:,}, or None, not {number!r}'
        )
    return Kept(age=seconds_of(value.get("age")), number=number)
