"""What was done to the fleet, and when: what the recoveries are measured against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from .plan import OUTAGE

AFTERMATH = 2.0
"""Seconds after an outage until the last has connected again: the longest pause between two tries.
"""


@dataclass(slots=True)
class Fault:
    """One fault. Times are epoch seconds, as PostgreSQL's on the same machine. ``until`` is when a
    stop or an outage was over, ``gone`` when the server had stopped."""

    kind: str
    at: float
    tree: str = ""
    pid: int = 0
    until: float = 0.0
    gone: float = 0.0

    def matters_at(self, moment: float) -> bool:
        """Whether it is not over before ``moment``."""
        over = max(self.until, self.at) + (AFTERMATH if self.kind == OUTAGE else 0.0)
        return over >= moment


@dataclass(slots=True)
class Exit:
    """A ``jobworker`` that was found gone."""

    tree: str
    at: float
    code: int


@dataclass(slots=True)
class History:
    """All of it, in order."""

    faults: list[Fault] = field(default_factory=list)
    outages: list[Fault] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    holding: list[Fault] = field(default_factory=list)
    """No faults: handlers that hold the GIL, and with it all that their process has claimed."""

    def counted(self) -> Counter[str]:
        """How many there were of each kind."""
        return Counter(fault.kind for fault in (*self.faults, *self.outages))

    def downtime(self, since: float = 0.0, until: float = float("inf")) -> float:
        """Seconds in which there was no database."""
        return sum(
            max(min(outage.until, until) - max(outage.at, since), 0.0) for outage in self.outages
        )

    def between(self, since: float, until: float) -> History:
        """What matters in that time: a long storm has thousands of faults."""

        def chosen(faults: list[Fault]) -> list[Fault]:
            return [fault for fault in faults if fault.at <= until and fault.matters_at(since)]

        return History(
            faults=chosen(self.faults),
            outages=chosen(self.outages),
            holding=chosen(self.holding),
        )

    def disturbed(
        self, trees: Collection[str], since: float, until: float, but: Fault | None = None
    ) -> bool:
        """Whether one of these trees, or the database, had another fault in that time."""
        return any(
            fault.at <= until
            and fault.matters_at(since)
            and (not fault.tree or fault.tree in trees)
            for fault in (*self.faults, *self.outages, *self.holding)
            if fault is not but
        )
