"""Which operations on all jobs that match are asked for: drawn from a seed and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

CANCEL, REPRIORITIZE, RUN_NOW = "cancel", "reprioritize", "run now"
REPLAY, PLAN, SICK_PLAN, DISMISS = "replay", "plan", "plan that stops", "dismiss"
KINDS = (PLAN, REPLAY, SICK_PLAN, CANCEL, REPRIORITIZE, RUN_NOW, DISMISS)
"""In turns. The first ones last longest."""

DEAD = {REPLAY, PLAN, SICK_PLAN, DISMISS}
"""What is done to dead jobs."""
COMPLETE = {RUN_NOW, REPLAY, PLAN, DISMISS}
"""Nobody else touches the jobs of these, so the operation has to change each of them."""

ENQUEUE, START, STOP, RESUME = "enqueue", "start", "stop", "resume"
CHUNK = 4
"""Jobs of a chunk here, so that an operation has several."""
LEAST, MOST = 2 * CHUNK, 6 * CHUNK
BEGIN_WITHIN = 0.6
"""Share of the storm, so that the last operations mostly end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is done ``at`` seconds to the operation with this number, or to its jobs."""

    at: float
    number: int
    verb: str
    kind: str
    jobs: int
    seconds: float

    @property
    def name(self) -> str:
        """The tag of its jobs, and its reason."""
        return f"operation-{self.number}"


def events(seed: int, operations: int, seconds: float) -> list[Event]:
    """The storm's, in order of time. One of three is stopped by an operator, and resumed."""
    choice = random.Random(f"{seed}-operations")
    return sorted(
        (
            event
            for number in range(operations)
            for event in _of_operation(choice, number, operations, seconds)
        ),
        key=lambda event: (event.at, event.number),
    )


def _of_operation(
    choice: random.Random, number: int, operations: int, seconds: float
) -> Iterator[Event]:
    at = BEGIN_WITHIN * seconds * number / operations
    kind = KINDS[number % len(KINDS)]
    jobs, work = choice.randint(LEAST, MOST), choice.uniform(0.01, 0.1)
    start = at + choice.uniform(0.0, 0.5)
    stop = start + choice.uniform(0.5, 3.0)
    resume = stop + choice.uniform(0.0, 2.0)

    def event(verb: str, at: float) -> Event:
        return Event(
            at=round(at, 3),
            number=number,
            verb=verb,
            kind=kind,
            jobs=jobs,
            seconds=round(work, 4),
        )

    yield event(ENQUEUE, at)
    yield event(START, start)
    if kind != SICK_PLAN and number % 3 == 1:
        yield event(STOP, stop)
        yield event(RESUME, resume)
