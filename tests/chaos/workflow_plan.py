"""Which workflows start, and what operators do to them: drawn from a seed and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = {
    "line": 20,
    "diamond": 20,
    "branch": 20,
    "fan": 10,
    "album": 6,
    "by name": 6,
    "order": 15,
    "approval": 15,
    "patient": 15,
    "choice": 25,
    "strict": 12,
    "consent": 12,
}
"""``album`` is a plain job that spawns, ``by name`` one that starts a diamond; the others are
workflows of ``graphs``."""

FAILING = {"branch", "order", "choice", "strict"}
WAITING = {"approval", "patient", "consent"}

MANNERS = {"once": 88, "twice": 6, "rolled back": 6}
"""``twice`` starts a second run with the same key, in the same transaction."""

VERBS = {"none": 35, "cancel": 16, "cancel a step": 11, "retry": 14, "skip": 14, "replay": 10}
START, SIGNAL = "start", "signal"
MOST_PARTS = 12
SKIPPING = 11
"""Parts with which a step of a choice is begun, and skips itself."""
FIRST = 2
"""Runs of each kind that start at first, fail if they can, and meet no operator."""

TAIL = 5.0
"""Seconds before the end of the storm without a start, so that what waits has ended by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is done ``at`` seconds to the run with this number. ``share`` picks one of its steps."""

    at: float
    number: int
    verb: str
    kind: str
    manner: str
    share: float
    failing: bool
    parts: int
    seconds: float


def events(seed: int, runs: int, seconds: float) -> list[Event]:
    """The storm's, in order of time. After the first ones, an operator follows two starts of three
    within 2.5 seconds; of the runs that wait, two of three get their signals."""
    choice = random.Random(f"{seed}-workflows")
    return sorted(
        (event for number in range(runs) for event in _of_run(choice, number, runs, seconds)),
        key=lambda event: (event.at, event.number),
    )


def _of_run(choice: random.Random, number: int, runs: int, seconds: float) -> Iterator[Event]:
    at = max(seconds - TAIL, 0.0) * number / runs
    (kind,) = choice.choices(list(KINDS), list(KINDS.values()))
    (manner,) = choice.choices(list(MANNERS), list(MANNERS.values()))
    (verb,) = choice.choices(list(VERBS), list(VERBS.values()))
    share, failing = choice.random(), choice.random() < 0.5
    parts, work = choice.randint(0, MOST_PARTS), choice.uniform(0.01, 0.2)
    later, signals = choice.uniform(0.0, 2.5), choice.choices([0.0, choice.uniform(0.0, 2.5)], k=2)
    answered = choice.random() < 0.67

    if number < FIRST * len(KINDS):
        kind, manner, verb, failing = list(KINDS)[number % len(KINDS)], "once", "none", True
        parts = SKIPPING

    def event(verb: str, at: float) -> Event:
        return Event(
            at=round(at, 3),
            number=number,
            verb=verb,
            kind=kind,
            manner=manner,
            share=share,
            failing=failing and kind in FAILING,
            parts=parts,
            seconds=round(work, 4),
        )

    yield event(START, at)
    if verb != "none":
        yield event(verb, at + later)
    if kind in WAITING and answered:
        yield from (event(SIGNAL, at + one) for one in signals)
