"""One thing that will be different."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Whether it needs a change before the move."""

    ERROR = "error"
    """It will not work."""
    NOTE = "note"
    """It will behave otherwise."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``where`` is the name of a setting, a task or a line of code."""

    level: Level
    where: str
    text: str


def error(where: str, text: str) -> Finding:
    return Finding(Level.ERROR, where, text)


def note(where: str, text: str) -> Finding:
    return Finding(Level.NOTE, where, text)
