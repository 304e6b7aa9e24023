"""Whether a process tree lives, and whether it claims jobs, read from the scoreboard."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..ipc.scoreboard import Scoreboard, WorkerSlot

SUPERVISOR_SECONDS = 5.0
"""The supervisor wakes up every second, and takes three at most to end the heartbeat process."""

CLAIM_SECONDS = 10.0
"""A claimer's round may begin so much later than planned. Statements end after five seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """A worker process. ``problem`` is why it does not claim; empty if it does."""

    pid: int
    worker: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """``problems`` of the whole tree, and its worker processes. ``is_ok`` without problems."""

    problems: tuple[str, ...]
    processes: tuple[ProcessReport, ...] = ()

    @property
    def is_ok(self) -> bool:
        return not self.problems


def hung_after(lease: float) -> float:
    """Seconds after which the supervisor kills a heartbeat process that does not turn."""
    return max(0.75 * lease, 3.0)


def liveness(scoreboard: Scoreboard, lease: float) -> HealthReport:
    """Whether supervisor and heartbeat run. A database that is away changes nothing: the heartbeat
    continues to try. ``lease`` is in seconds."""
    now, status = time.monotonic(), scoreboard.status
    problems = []
    if (late := now - status.turned_at) > SUPERVISOR_SECONDS:
        problems.append(f"the supervisor has not run for {late:.0f} s")
    limit = hung_after(lease)
    # A restart does not bring back a database that does not answer; the supervisor replaces the
    # heartbeat process at the limit. Otherwise the answer is no while it hangs, which is before.
    limit = limit + SUPERVISOR_SECONDS if status.is_renewing else limit / 2
    if (late := now - status.beat_at) > limit:
        problems.append(f"the heartbeat process has not run for {late:.0f} s")
    return HealthReport(problems=tuple(problems))


def readiness(scoreboard: Scoreboard, lease: float) -> HealthReport:
    """Whether at least one worker process claims jobs. ``lease`` is in seconds."""
    status, now = scoreboard.status, time.monotonic()
    problems = list(liveness(scoreboard, lease).problems)
    if status.draining:
        problems.append("draining")
    if not status.is_connected:
        problems.append("the heartbeat process has no connection to the database")
    processes = tuple(
        ProcessReport(
            pid=slot.process, worker=slot.worker, problem=_why_it_does_not_claim(slot, lease, now)
        )
        for slot in scoreboard.slots
    )
    if all(process.problem for process in processes):
        problems += [
            f"worker process {number}: {process.problem}"
            for number, process in enumerate(processes, 1)
        ]
    return HealthReport(problems=tuple(problems), processes=processes)


def _why_it_does_not_claim(slot: WorkerSlot, lease: float, now: float) -> str:
    if not slot.worker:
        return "not registered"
    if slot.draining:
        return "draining"
    if not slot.is_safe(lease):
        return "its lease was not renewed"
    if not slot.settles:
        return "its settler has no connection to the database"
    if slot.claim_failed:
        return "its last claim failed"
    if not slot.round_due:
        return "it has not claimed yet"
    if (late := now - slot.round_due) > CLAIM_SECONDS:
        return f"it should have claimed {late:.0f} s ago"
    return ""
