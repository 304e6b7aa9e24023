"""What is computed against the time of the database, which goes on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.factories import run_sql

ROUNDED = 0.001


@dataclass(frozen=True)
class Span:
    """``seconds in span``."""

    least: float
    most: float

    def __contains__(self, seconds: object) -> bool:
        assert isinstance(seconds, int | float), seconds
        return self.least - ROUNDED <= seconds <= self.most + ROUNDED


class Moment:
    """The time between two readings of the database's clock: ``row.finished_at in moment``."""

    def __init__(self) -> None:
        # now() is the time of the transaction that a test may be in, and what it reads is by it.
        ((self.first,),) = run_sql("SELECT now()")
        self.last = self.first

    def __contains__(self, time: object) -> bool:
        assert isinstance(time, datetime), time
        return self.first <= time <= self.last

    def __repr__(self) -> str:
        return f"<{self.first} to {self.last}>"

    def since(self, time: datetime | None) -> Span:
        """An age at this moment."""
        assert time is not None
        return Span((self.first - time).total_seconds(), (self.last - time).total_seconds())

    def until(self, time: datetime | None) -> Span:
        """How far off that was at this moment."""
        ago = self.since(time)
        return Span(-ago.most, -ago.least)

    @property
    def length(self) -> timedelta:
        return self.last - self.first


@contextmanager
def moment() -> Iterator[Moment]:
    """However long the block takes, what it read lies in between::

    with moment() as now:
        age = take_snapshot().oldest_seconds
    assert age in now.since(job.available_at)
    """
    made = Moment()
    yield made
    ((made.last,),) = run_sql("SELECT clock_timestamp()")
