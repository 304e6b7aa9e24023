"""When a backlog will be gone, from what arrived and what was claimed lately."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second that became ready, were claimed, and ended."""

    arrived: float
    claimed: float
    ended: float


def rates_of(
    *, ready: tuple[int, int], running: tuple[int, int], ended: int, seconds: float
) -> Rates:
    """The rates of the last ``seconds``, from the ready and the running jobs before and now, and
    the attempts that ended. A job was claimed if it runs or has ended, and did not run before. It
    arrived if it is ready or was claimed, and was not ready before."""
    claimed = max(running[1] - running[0] + ended, 0)
    arrived = max(ready[1] - ready[0] + claimed, 0)
    return Rates(arrived=arrived / seconds, claimed=claimed / seconds, ended=ended / seconds)


def drain_seconds(ready: int, rates: Rates | None) -> float | None:
    """Seconds until none of the ``ready`` jobs and of those that arrive meanwhile is left. None if
    they do not become fewer, or the rates are not known."""
    if not ready:
        return 0.0
    if rates is None or rates.claimed <= rates.arrived:
        return None
    return ready / (rates.claimed - rates.arrived)
