"""What is asked for: drawn from a seed, and from nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = {
    "outside": 50,
    "inside": 26,
    "stumble": 10,
    "alone": 3,
    "tenant": 8,
    "awaits": 12,
    "awaits_tenant": 6,
    "pool": 2,
    "pool_alone": 1,
    "files": 5,
    "charges": 6,
    "calls_back": 5,
    "key_of_one": 3,
    "key_of_three": 3,
    "slots": 3,
    "calls": 3,
    "of_tenant": 3,
    "metered": 3,
    "all_gates": 3,
    "newcomer": 3,
}
GATED = list(KINDS)[-8:]
FIRST = 10
"""Jobs of each kind with gates that are asked for at first, so that each limit is reached."""
PILLS = 3
MANNERS = {"one": 87, "batch": 5, "twice": 3, "rolled back": 3, "cancelled": 2, "forced": 1}
"""``twice`` asks a second time, with the same key, before the first has committed. ``cancelled``
asks for a batch and cancels all of it: some run by then, some are held by a worker, some wait.
``forced`` stops a part of a batch by force at once, and the others when they run."""

QUEUES = ("default", "default", "default", "second")
LATER = "later"
"""A queue that is made in the midst of the storm, long after the workers have begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """``count`` jobs of one kind that are asked for together."""

    kind: str
    manner: str
    count: int
    queue: str
    seconds: float


def requests(seed: int, jobs: int) -> Iterator[Request]:
    """The storm's, ``jobs`` in all: three of four take 5 to 20 ms, the fourth 40 to 1500. Among
    them are three poison pills, and at least three that hold the GIL for longer than the lease."""
    choice = random.Random(f"{seed}-enqueuer")
    holders = max(jobs // 1_000, 3)
    number = FIRST * len(GATED)
    special = choice.sample(range(number, jobs), min(PILLS + holders, jobs - number))
    pills, holding = set(special[:PILLS]), set(special[PILLS:])
    for kind in GATED:
        # Starts in quick succession are what a rate has to prevent.
        seconds = 0.02 if kind in ("calls", "metered") else 0.3
        yield Request(kind=kind, manner="batch", count=FIRST, queue="default", seconds=seconds)
    while number < jobs:
        (kind,) = choice.choices(list(KINDS), list(KINDS.values()))
        (manner,) = choice.choices(list(MANNERS), list(MANNERS.values()))
        count = choice.randint(2, 20)
        queue = choice.choice(QUEUES if number < jobs // 2 else (*QUEUES, LATER))
        slow = choice.random() < 0.25
        # Most of the slow are of a few hundred milliseconds, as many as there are of each octave.
        seconds = 0.04 * 37.5 ** choice.random() if slow else choice.uniform(0.005, 0.02)
        if number in pills or number in holding:
            kind, manner = "poison" if number in pills else "hold_the_gil", "one"
            seconds = min(seconds, 0.3)
        count = min(count, jobs - number) if manner in ("batch", "cancelled", "forced") else 1
        if any(place in pills or place in holding for place in range(number + 1, number + count)):
            count = 1  # a special one among them would be passed over
        if manner in ("cancelled", "forced"):
            kind, seconds = manner, 0.05 + seconds / 10
        yield Request(kind=kind, manner=manner, count=count, queue=queue, seconds=round(seconds, 4))
        number += count


def _mild(jobs: int) -> Iterator[Request]:
    """Some of every kind that harms nobody. Each pool forks two processes, and jobs with gates wait
    for each other, so fewer of those."""
    for kind in KINDS:
        count = jobs // 6 if kind.startswith("pool") or kind in GATED else jobs
        yield Request(kind=kind, manner="batch", count=count, queue="default", seconds=0.01)


def errand(name: str, seed: int, jobs: int) -> list[Request]:
    """What ``name`` asks for: the storm, or what is done in peace after it."""
    match name:
        case "storm":
            return list(requests(seed, jobs))
        case "mild":  # one that holds the GIL for longer than the lease must cost nobody his
            return [
                Request(kind="hold_the_gil", manner="one", count=1, queue="second", seconds=0.0),
                *_mild(60),
            ]
        case "milder":
            return list(_mild(60))
        case "slow":
            return [Request(kind="outside", manner="batch", count=2, queue="default", seconds=1.5)]
        case "late":  # shorter than the lease: it is over when its worker is found to be lost
            return [Request(kind="outside", manner="batch", count=2, queue="default", seconds=2.5)]
        case "pills":
            pill = Request(kind="poison", manner="one", count=1, queue="default", seconds=0.01)
            return [pill] * 4
        case _:
            raise ValueError(f"no errand is named {name!r}")
