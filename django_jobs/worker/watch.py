"""The supervisor's eye on time: time-outs of attempts, leases, and handlers that outlive theirs."""

from __future__ import annotations

import logging
import time

from .children import Child, kill
from .connections import say
from .tree import Tree

TICK = 0.25
"""Seconds between two looks where something is due soon."""

LOST_GRACE = 2.0
"""Seconds that handlers get whose lease was lost, to see it and end. Others run their jobs."""


class Watch:
    """Looks at the board and kills what must not run any longer. ``lease`` is in seconds."""

    def __init__(self, tree: Tree, lease: float) -> None:
        self._tree = tree
        self._lease = lease
        self._looked = time.monotonic()
        self._fence_after = 0.0

    def look(self, now: float) -> None:
        """Look at the heartbeat and at every worker process."""
        # After a long sleep of ours (SIGSTOP) the heartbeat slept as well and gets the time of a
        # try to renew before anybody is fenced.
        if now - self._looked > 4 * TICK + 1.0:
            self._fence_after = now + 2.0
        self._looked = now
        hung = now - self._tree.board.beat_at > max(0.75 * self._lease, 3.0)
        if self._tree.heart and hung and now > self._fence_after:
            say("heartbeat_hangs", logging.ERROR, pid=self._tree.heart)
            kill(self._tree.heart)
        for child in self._tree.children:
            if child.pid:
                self._look_at(child, now)

    def _look_at(self, child: Child, now: float) -> None:
        slot = child.slot
        self._stop_stale(child, now)
        lease_over = bool(slot.worker) and now >= self._fence_at(child) and not slot.lease_lost
        if not (slot.has_deadlines or lease_over):
            child.fenced = False
            return
        running = [entry for entry in slot.in_hand() if not entry.finished]
        overdue = [entry for entry in running if entry.deadline and now > entry.deadline]
        for entry in overdue:
            if entry.alone:
                self.end_isolated(child, entry.job, "timed_out", "its time-out")
        together = [entry for entry in overdue if not entry.alone]
        if together and not child.killed_for:
            child.killed_for = {entry.job: entry.deadline - entry.started for entry in together}
            child.killed_because = "its process was killed for another job's time-out"
            kill(child.pid)
        if lease_over and running and not child.fenced and now > self._fence_after:
            child.fenced = True
            self._fence(child)

    def _stop_stale(self, child: Child, now: float) -> None:
        """Kill a process whose handlers go on with jobs that were taken from it."""
        worker, lost = child.slot.worker, child.slot.lease_lost
        if worker != child.seen_worker:  # it has a new row; what it ran under the old one is stale
            lost = lost or child.seen_worker != 0
            child.seen_worker = worker
        if not (lost or child.stale_since):
            return
        stale = [
            entry
            for entry in child.slot.in_hand()
            if not entry.finished and (entry.worker != worker or child.slot.lease_lost)
        ]
        if not stale:
            child.stale_since = 0.0
        elif not child.stale_since:
            child.stale_since = now
        elif now - child.stale_since > LOST_GRACE:
            for entry in stale:
                self.end_isolated(child, entry.job, "released", "its lease was lost")
            if not all(entry.alone for entry in stale):
                say("stale_handlers", logging.ERROR, worker=worker, jobs=len(stale))
                child.killed_because = "its process was killed for jobs that it had lost"
                kill(child.pid)

    def _fence_at(self, child: Child) -> float:
        """When a handler has to be stopped, so that it is gone before the lease is."""
        return child.slot.lease_until - min(1.0, self._lease / 10)

    def _fence(self, child: Child) -> None:
        """Others may start its jobs soon: what it runs must not run any more by then. A process
        that runs nothing is left alone, so what has finished is settled once the database
        answers."""
        say("fenced", logging.ERROR, worker=child.slot.worker, reason="the lease was not renewed")
        child.killed_because = "its worker could not renew its lease and stopped it"
        kill(child.pid)

    def end_isolated(self, child: Child, job: int, end: str, reason: str) -> None:
        """Kill the child that runs ``job`` alone for this process; tell it how the job ended."""
        for pid, one in self._tree.isolated.items():
            if one.child is child and one.job == job and not one.end:
                one.end, one.reason = end, reason
                kill(pid)

    def next_look(self, child: Child, now: float) -> float:
        """When this child has to be looked at again, at the latest."""
        fence_at = self._fence_at(child)
        return fence_at if fence_at > now and not child.stale_since else now + TICK
