"""What the workers wrote. Faults leave words; anything else is a fault of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

EVENT = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ (?P<level>[A-Z]+) (?P<text>event=(?P<event>\w+).*)$")

EXPECTED = {
    "process_died": "a child was killed, or a poison pill killed it",
    "heartbeat_died": "the child that was killed was the heartbeat",
    "heartbeat_hangs": "the heartbeat was stopped, and killed for it",
    "fenced": "the lease could not be renewed: the database was away, or the heartbeat stopped",
    "stale_handlers": "a handler went on for two seconds after its lease was lost",
    "job_dead": "a poison pill, what fails on purpose, a wait without its signal",
}
"""Events at level ERROR, and why they are expected here."""

DEAD = re.compile(r" job_type=(chaos\.(poison|fails|bulk_dies)|django_jobs\.wait)\b")

AWAY = re.compile(
    r"^CommandError: the database 'default' does not answer: |^\s*$"
    r"|^CommandError: --queues: there are no queues yet; run manage.py migrate$"
    # A message of libpq may have several lines.
    r"|^\s*(Is the server running|connection to server|DETAIL:|HINT:|FATAL:|server closed"
    r"|This probably means|before or while processing"
    r"|no connection to the server|connection not open|could not (send|receive) )"
    # psycopg's own words, with the error that the worker logs: which depends on the moment.
    r"|^error ignored [a-z ]+ <psycopg\.[^>]*\[BAD\][^>]*>: "
)
"""What a ``jobworker`` says that was started while the database was away, or between the flush of
its tables and the queues that are written again; or whose connection was lost between two
statements that are sent together."""


def problems(logs: Iterable[Path]) -> Iterator[tuple[int, str]]:
    """Each line that should not be there."""
    for log in sorted(logs):
        unexpected = [
            line for line in log.read_text(errors="replace").splitlines() if not _expected(line)
        ]
        if unexpected:
            yield 10, f"{log.name}: {len(unexpected)} unexpected lines, such as {unexpected[:5]}"


def _expected(line: str) -> bool:
    event = EVENT.match(line)
    if event is None:
        return bool(AWAY.match(line))
    if event["level"] in ("DEBUG", "INFO", "WARNING"):
        return "permission denied" not in event["text"]
    return event["event"] in EXPECTED and (
        event["event"] != "job_dead" or DEAD.search(event["text"]) is not None
    )
