"""Compares what was logged with the table of events."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Iterator

from django_jobs.logs.events import EVENTS

LINE = re.compile(r"^\S+ \S+ (?P<level>[A-Z]+) (?P<pairs>event=.*)$", re.MULTILINE)
PAIR = re.compile(r"(\w+)=.*", re.DOTALL)


def problem(name: str, level: int, keys: Iterable[str]) -> str:
    """What of this event is not in the table; or nothing."""
    event = EVENTS.get(name)
    if event is None:
        return f"no event {name}"
    if level not in event.levels:
        return f"{name} at {logging.getLevelName(level)}"
    unknown = set(keys) - set(event.keys)
    return f"{name} with {sorted(unknown)}" if unknown else ""


def problems_in(text: str) -> Iterator[str]:
    """What a worker has logged in pairs and the table does not have."""
    for line in LINE.finditer(text):
        event, *pairs = shlex.split(line["pairs"])
        keys = [found[1] for pair in pairs if (found := PAIR.fullmatch(pair))]
        level = logging.getLevelNamesMapping()[line["level"]]
        if what := problem(event.removeprefix("event="), level, keys):
            yield what
