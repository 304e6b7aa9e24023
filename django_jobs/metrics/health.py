"""Whether anything is wrong that somebody should be woken for."""

from __future__ import annotations

from .snapshot import MOST_COUNTED, SchedulesSnapshot, Snapshot

MAX_LAG = 60.0
"""Seconds that schedules may go unseen, or be overdue."""


MOST_NAMED = 3
"""Kinds of stuck jobs that are named in the one line of a check."""


def problem(snapshot: Snapshot, *, max_lag: float = MAX_LAG, schedules: bool = True) -> str | None:
    """What is wrong, in one line; None if nothing is.

    ``schedules`` says whether any are to be fired here at all. ``max_lag`` is in seconds.
    """
    if not any(worker.lease_seconds >= 0 for worker in snapshot.workers):
        return "no worker is alive"
    stuck = stuck_jobs(snapshot)
    found = stuck[:MOST_NAMED]
    if len(stuck) > MOST_NAMED:
        found.append(
            f"and {len(stuck) - MOST_NAMED} more kinds of jobs that no live worker can run"
        )
    if schedules and (late := _problem_of_schedules(snapshot.schedules, max_lag)):
        found.append(late)
    return "; ".join(found) or None


def stuck_jobs(snapshot: Snapshot) -> list[str]:
    """A line for each kind of ready jobs that no live worker can run. None while no worker lives:
    then all are stuck, for one reason."""
    if not snapshot.workers:
        return []
    served = {name for worker in snapshot.workers for name in worker.queues}
    return [
        *(
            f"{_ready(queue.ready)} in a queue no live worker serves: {queue.name}"
            for queue in snapshot.queues
            if queue.ready and queue.name not in served
        ),
        *(
            f"{_ready(unknown.ready)} of a type no live worker of its queue knows: "
            f"{unknown.job_type}"
            for unknown in snapshot.unknown_job_types
        ),
        *(
            f"{_ready(unread.ready)} of a newer version than any live worker of its queue reads: "
            f"{unread.job_type}, version {unread.version}"
            for unread in snapshot.unread_versions
        ),
    ]


def _problem_of_schedules(schedules: SchedulesSnapshot, max_lag: float) -> str | None:
    if schedules.put_aside:
        return f"schedules put aside with an error: {schedules.put_aside}"
    if not schedules.on:
        return None
    if schedules.unseen_seconds is not None and schedules.unseen_seconds > max_lag:
        if schedules.seen_seconds is None:
            return "no worker looks at schedules"
        return f"no worker has looked at schedules for {schedules.seen_seconds:.0f} s"
    if schedules.overdue_seconds is not None and schedules.overdue_seconds > max_lag:
        late = f"{schedules.overdue_seconds:.0f} s"
        return f"the schedule {schedules.most_overdue!r} is overdue by {late}"
    return None


def _ready(count: int) -> str:
    if count == 1:
        return "1 ready job"
    return f"{count}{'+' if count >= MOST_COUNTED else ''} ready jobs"
