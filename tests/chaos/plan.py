"""Which fault comes next: drawn from a seed, and from nothing else.

Every step draws all its numbers, needed or not, so that what the machine does in between cannot
change what comes after.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from .timing import LEASE

KILL_SUPERVISOR = "kill the supervisor"
KILL_CHILD = "kill a child"
STOP_TREE = "stop the tree"
STOP_UNTIL_TAKEN = "stop the tree until its job runs elsewhere"
STOP_SUPERVISOR = "stop the supervisor"
STOP_CHILD = "stop a child"
TERMINATE = "terminate backends"
DRAIN = "ask it to drain"
OUTAGE = "stop the database"
KILL_TREE = "kill the tree"

STOPS = {STOP_TREE, STOP_UNTIL_TAKEN, STOP_SUPERVISOR, STOP_CHILD}
LONGEST_STOP = 2.2 * LEASE

WEIGHTS = {
    KILL_SUPERVISOR: 2,
    KILL_CHILD: 5,
    STOP_TREE: 1,
    STOP_UNTIL_TAKEN: 6,
    STOP_SUPERVISOR: 1,
    STOP_CHILD: 1,
    TERMINATE: 3,
    DRAIN: 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One fault, and the pause after it. ``share`` picks among the tree's children. A stop that
    waits for its job to be taken over goes to whichever tree runs one; ``tree`` is for the others.
    """

    kind: str
    tree: int
    share: float
    seconds: float
    backends: int
    pause: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The database is stopped ``at`` seconds after the begin, for ``seconds``."""

    at: float
    how: signal.Signals
    seconds: float


def steps(seed: int, trees: int) -> Iterator[Step]:
    """Faults of the workers, without end. A stop lasts from a second to more than two leases."""
    choice = random.Random(f"{seed}-faults")
    while True:
        (kind,) = choice.choices(list(WEIGHTS), list(WEIGHTS.values()))
        yield Step(
            kind=kind,
            tree=int(choice.random() * trees),
            share=choice.random(),
            seconds=choice.uniform(1.0, LONGEST_STOP),
            backends=1 + int(choice.random() * 3),
            pause=choice.uniform(0.3, 0.9),
        )


def outages(seed: int, seconds: float) -> list[Outage]:
    """Four in a minute, then one a minute. Of four, one is longer than the lease."""
    choice = random.Random(f"{seed}-database")
    count = max(min(4, round(seconds / 15)), 1, int(seconds / 60))
    longest = choice.randrange(min(4, count))
    planned = []
    for number in range(count):
        # PostgreSQL's "fast" and "immediate"; what they are called is pg_ctl's business.
        how = signal.SIGINT if choice.random() < 0.5 else signal.SIGQUIT
        away = choice.uniform(0.0, 2.0)
        planned.append(
            Outage(
                at=seconds * (number + 0.5) / count,
                how=how,
                seconds=LEASE + 1.5 if number % 4 == longest else away,
            )
        )
    return planned
