"""What ``jobworker`` was asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RECYCLE = 75
"""Exit code of a worker process that wants to be replaced (``--max-jobs``, ``--max-rss``)."""

FORCED = 143
"""Exit code of ``jobworker`` when it had to kill what did not end in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShare:
    """A queue to serve, and its weight in the turns."""

    name: str
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Times are seconds, sizes megabytes. ``strict`` serves the queues in the order of listing.
    ``every_queue`` serves all queues there are, also those made later; ``queues`` are then those
    of the start."""

    queues: tuple[QueueShare, ...]
    every_queue: bool = False
    strict: bool = False
    processes: int = 1
    threads: int = 4
    drain_timeout: float = 25.0
    burst: bool = False
    lease: float = 30.0
    beat: float = 7.5
    poll: float = 1.0
    max_jobs: int | None = None
    max_rss: int | None = None
    name: str = ""
    forks: bool = True

    @property
    def connections(self) -> int:
        """How many connections to the jobs' database a command needs at most, but for what its
        isolated children need: of the heartbeat process for leases and for upkeep; of each worker
        process for claiming, settling, listening and reports, and one of each thread. Without
        forks what it leaves is settled while it has all of its own, on one more."""
        return 2 + self.processes * (4 + self.threads) + (not self.forks)


def chosen_queues(text: str | None, strict: bool, known: Sequence[str]) -> tuple[QueueShare, ...]:
    """The queues that ``--queues`` names, all that are ``known`` where it is None.

    Raises ``ValueError`` with the known ones for a name that is not among them.
    """
    if text is None:
        if strict:
            raise ValueError("--strict serves queues in the order of listing; list them")
        if not known:
            raise ValueError("there are no queues yet; run manage.py migrate")
        return tuple(QueueShare(name=name) for name in known)
    shares = parse_queues(text)
    unknown = [share.name for share in shares if share.name not in known]
    if unknown:
        raise ValueError(f"no queue is named {', '.join(unknown)}; known are: {', '.join(known)}")
    return shares


def parse_queues(text: str) -> tuple[QueueShare, ...]:
    """``"critical:5,default"`` as shares; a weight left out is 1.

    Raises ``ValueError`` for an empty list, a name twice, or a weight that is no whole number from
    1 to 1000.
    """
    shares: list[QueueShare] = []
    for part in text.split(","):
        name, _, weight = part.strip().partition(":")
        if not name:
            raise ValueError(f"{text!r} names an empty queue")
        if name in {share.name for share in shares}:
            raise ValueError(f"queue {name!r} is named twice")
        if weight and not (weight.isdecimal() and 1 <= int(weight) <= 1000):
            raise ValueError(
                f"the weight of {name!r} is a whole number from 1 to 1000, not {weight!r}"
            )
        shares.append(QueueShare(name=name, weight=int(weight or 1)))
    return tuple(shares)
