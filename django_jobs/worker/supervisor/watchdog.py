"""Kills processes whose jobs must not run any longer: time-outs, silence, memory, cancelled
isolated jobs, leases, and handlers that outlive their lease."""

from __future__ import annotations

import logging
import os
import time

from ...conf import conf
from ...lifecycle.job_columns import Fence
from ..events import emit
from ..health.server import hung_after
from ..ipc.pipes import AttemptEnd, kill
from ..ipc.scoreboard import StartedJob
from ..meters import resident_megabytes
from ..timeouts.limits import STOP_SIGNAL
from .process_tree import IsolatedChild, ProcessTree, WorkerProcessHandle

TICK = 0.25
"""Seconds between two checks if something is due soon."""

SOFT_GRACE = 1.0
"""Seconds from the exception that is raised in a handler at its time-out to the kill."""

LOST_GRACE = 2.0
"""Seconds for handlers whose lease was lost to notice it and end. Other workers run their jobs."""


class Watchdog:
    """Kills processes whose jobs must not run longer, by the scoreboard. ``lease`` in seconds."""

    def __init__(self, tree: ProcessTree, lease: float) -> None:
        self._tree = tree
        self._lease = lease
        self._looked = time.monotonic()
        self._lenient_until = 0.0

    def look(self, now: float) -> None:
        # If this process was suspended (SIGSTOP, a suspended machine), the others were too. The
        # heartbeat gets time to renew before any worker is fenced, and handlers get time to notice
        # that theirs is over.
        if now - self._looked > 4 * TICK + 1.0:
            self._lenient_until = now + 2.0
        self._looked = now
        hung = now - self._tree.scoreboard.status.beat_at > hung_after(self._lease)
        if self._tree.heartbeat_pid and hung and now > self._lenient_until:
            emit("heartbeat_hangs", logging.ERROR, pid=self._tree.heartbeat_pid)
            kill(self._tree.heartbeat_pid)
        for child in self._tree.children:
            if child.pid:
                self._look_at(child, now)

    def _look_at(self, child: WorkerProcessHandle, now: float) -> None:
        slot = child.slot
        self._stop_stale(child, now)
        fence = slot.fence_at(self._lease)
        lease_over = bool(slot.worker) and now >= fence and not slot.lease_lost
        if not (slot.watched or lease_over):
            child.fenced = False
            return
        running = [entry for entry in slot.look() if not entry.finished]
        if now > self._lenient_until:
            self._end_overdue(child, running, now)
            if lease_over and running and not child.fenced:
                child.fenced = True
                self._fence(child)
        for entry in running:
            if entry.alone and (isolated := self._tree.isolated_child(child, entry)):
                _look_at_isolated(isolated, entry, now)

    def _end_overdue(
        self, child: WorkerProcessHandle, running: list[StartedJob], now: float
    ) -> None:
        together: dict[Fence, tuple[AttemptEnd, float]] = {}
        for entry in running:
            ending = _overdue(entry, now)
            if ending is None:
                continue
            if entry.alone:
                self._end_isolated(child, entry, *ending)
            else:
                together[entry.fence] = ending
        if together and not child.killed_for:
            child.killed_for = together
            forced = any(end is AttemptEnd.FORCED for end, _ in together.values())
            why = "to stop another job by force" if forced else "for another job's time-out"
            child.kill(f"its process was killed {why}")

    def _stop_stale(self, child: WorkerProcessHandle, now: float) -> None:
        """Kill a process whose handlers still run jobs that were taken from it."""
        worker, lost = child.slot.worker, child.slot.lease_lost
        if worker != child.seen_worker:  # it has a new row; the jobs of the old one are stale
            lost = lost or child.seen_worker != 0
            child.seen_worker = worker
        if not (lost or child.stale_since):
            return
        stale = [
            entry
            for entry in child.slot.started_jobs()
            if not entry.finished and (entry.worker != worker or child.slot.lease_lost)
        ]
        if not stale:
            child.stale_since = 0.0
        elif not child.stale_since:
            child.stale_since = now
        elif now - child.stale_since > LOST_GRACE:
            for entry in stale:
                self._end_isolated(child, entry, AttemptEnd.RELEASED, reason="its lease was lost")
            if not all(entry.alone for entry in stale):
                emit("stale_handlers", logging.ERROR, worker=worker, jobs=len(stale))
                child.kill("its process was killed because it ran jobs that it had lost")

    def _fence(self, child: WorkerProcessHandle) -> None:
        """Kill a process before its lease ends, because other workers may start its jobs then. A
        process without started jobs is left alone, so that it settles its endings once the database
        answers."""
        emit("fenced", logging.ERROR, worker=child.slot.worker, reason="the lease was not renewed")
        child.kill("its worker was stopped because it could not renew its lease")

    def _end_isolated(
        self,
        child: WorkerProcessHandle,
        entry: StartedJob,
        end: AttemptEnd,
        seconds: float = 0.0,
        reason: str = "",
    ) -> None:
        if isolated := self._tree.isolated_child(child, entry):
            isolated.kill(end, seconds, reason)

    def next_look(self, child: WorkerProcessHandle, now: float) -> float:
        """The latest time of the next check of this child."""
        fence = child.slot.fence_at(self._lease)
        return fence if fence > now and not child.stale_since else now + TICK


def _look_at_isolated(isolated: IsolatedChild, entry: StartedJob, now: float) -> None:
    if entry.forced_at and not isolated.forced:
        isolated.forced = True
        os.kill(isolated.pid, STOP_SIGNAL)
    max_rss = isolated.max_rss
    if max_rss is not None and (size := resident_megabytes(isolated.pid)) > max_rss:
        reason = f"held {size} MB, more than its max_rss of {max_rss} MB"
        isolated.kill(AttemptEnd.CRASHED, reason=reason)
    elif entry.cancel_asked:
        isolated.cancel_seen = isolated.cancel_seen or now
        if now - isolated.cancel_seen >= conf().cancel_grace_seconds:
            isolated.kill(AttemptEnd.CANCELLED)


def _overdue(entry: StartedJob, now: float) -> tuple[AttemptEnd, float] | None:
    """The ending of an attempt that ignored the exception raised in it, and after how many seconds;
    None if it has time left.

    A time from before the start was read while it was being written, because the scoreboard has no
    lock. The next check reads it completely.
    """
    # A worker process looks as often as this one, and raises then.
    if entry.forced_at and now > entry.forced_at + TICK + SOFT_GRACE:
        return AttemptEnd.FORCED, 0.0
    if entry.deadline > entry.started and now > entry.deadline + SOFT_GRACE:
        return AttemptEnd.TIMED_OUT, entry.deadline - entry.started
    whole = entry.progress_at >= entry.started
    if entry.silence and whole and now > entry.progress_at + entry.silence + SOFT_GRACE:
        return AttemptEnd.SILENT, entry.silence
    return None
