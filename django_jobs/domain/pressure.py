"""How full the backlog of a queue is, what that means for who enqueues, and when it is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "high", "full"]

HIGH_PERCENT = 80
"""Percent of ``max_backlog`` from which on the level is high."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """The backlog of a queue.

    ``level`` is ``"full"`` from ``max_backlog`` jobs on that are ready or wait at their gates,
    ``"high"`` from 80 % of them, else ``"ok"``, as always without a ``max_backlog``. ``ready``
    counts the ready jobs up to ``max_backlog``, or up to 100,000 without one, and ``gated`` those
    at their gates. ``oldest_seconds`` is for how long the oldest ready job has been due; None
    without one. ``drain_seconds`` estimates the time in which the ready jobs run, at the rate of
    the last minutes; None if no job of the queue ran in these, and in a pause.
    """

    level: Level
    ready: int
    oldest_seconds: float | None
    drain_seconds: float | None
    gated: int = 0


@dataclass(frozen=True, slots=True)
class ResourcePressure(Pressure):
    """What uses a resource, and what waits for it.

    ``gated`` counts the jobs that wait and name it, up to its ``max_waiting``, or up to 100,000
    without one, and ``level`` follows from both as for a queue. ``ready`` counts those that have
    its slot and start next, and ``oldest_seconds`` is of these. ``drain_seconds`` is the time in
    which its rate lets all of them start; None without a rate, in a pause, and until its breaker is
    closed. ``breaker`` is ``"closed"``, ``"open"`` or ``"half_open"``, and ``tokens`` is how many
    jobs the rate lets start now; None without one.
    """

    breaker: str = "closed"
    tokens: float | None = None


def level_of(held: int, max_backlog: int | None) -> Level:
    """The level of a queue with this many jobs that are ready or wait at their gates."""
    if max_backlog is None:
        return "ok"
    if held >= max_backlog:
        return "full"
    return "high" if 100 * held >= HIGH_PERCENT * max_backlog else "ok"


def drain_seconds(ready: int, rate: float | None) -> float | None:
    """Seconds until none of the ready jobs is left, if they become fewer by ``rate`` jobs a second;
    None if they do not, or that is not known."""
    if ready == 0:
        return 0.0
    return ready / rate if rate and rate > 0 else None


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second that became ready, were claimed, and ended."""

    arrived: float
    claimed: float
    ended: float

    @property
    def drained(self) -> float:
        """Jobs per second by which the ready ones become fewer, if those that arrive count too."""
        return self.claimed - self.arrived


def rates_of(
    *, ready: tuple[int, int], running: tuple[int, int], ended: int, seconds: float
) -> Rates:
    """The rates of the last ``seconds``, from the ready and the running jobs before and now, and
    the attempts that ended. A job was claimed if it runs or has ended, and did not run before. It
    arrived if it is ready or was claimed, and was not ready before."""
    claimed = max(running[1] - running[0] + ended, 0)
    arrived = max(ready[1] - ready[0] + claimed, 0)
    return Rates(arrived=arrived / seconds, claimed=claimed / seconds, ended=ended / seconds)
