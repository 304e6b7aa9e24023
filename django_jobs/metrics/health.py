"""Whether anything is wrong that somebody should be woken for."""

from __future__ import annotations

from .snapshot import Snapshot

MAX_LAG = 60.0
"""Seconds that schedules may go unseen, or be overdue."""


def problem(snapshot: Snapshot, *, max_lag: float = MAX_LAG, schedules: bool = True) -> str | None:
    """What is wrong, in one line; None if nothing is.

    ``schedules`` says whether any are to be fired here at all. ``max_lag`` is in seconds.
    """
    if not any(worker.lease_seconds >= 0 for worker in snapshot.workers):
        return "no worker is alive"
    told = snapshot.schedules
    if not schedules:
        return None
    if told.put_aside:
        return f"schedules put aside with an error: {told.put_aside}"
    if not told.on:
        return None
    if told.unseen_seconds is not None and told.unseen_seconds > max_lag:
        if told.seen_seconds is None:
            return "no worker looks at schedules"
        return f"no worker has looked at schedules for {told.seen_seconds:.0f} s"
    if told.overdue_seconds is not None and told.overdue_seconds > max_lag:
        return f"the schedule {told.most_overdue!r} is overdue by {told.overdue_seconds:.0f} s"
    return None
