"""ready -> blocked and back: quarantine job types, and lift quarantines.

A claim takes no job of a quarantined type, so a quarantine is in force once it is committed. Its
ready jobs become blocked to keep claims fast, which would otherwise pass over them again and again:
180,000 of them take 40 to 75 ms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ...models import Queue
from ...models.database import fetch
from ...registry import family
from ..claiming import START
from ..job_columns import AT_THE_GATES, QueuePosition
from ..notifying import QUARANTINED, notify_after_commit
from .jobs import Actor, demand, name_of

PAGE = 5_000
"""Jobs that one statement looks at or moves."""
MOVE_SECONDS = 1.0
"""Seconds for which an operation moves jobs itself. The maintenance task moves the rest."""
MOST_CRASHES = 10_000
"""Crashed runs to look at, newest first."""

# A lifted quarantine starts again, except by a worker whose crashes are all from before the lift:
# an operator lifted it while the worker counted.
QUARANTINE = """
INSERT INTO django_jobs_quarantine AS known (job_type, since, reason, by, until)
SELECT input.name, clock_timestamp(), %(reason)s, %(by)s, %(until)s::timestamptz
FROM unnest(%(names)s::text[]) AS input (name)
ORDER BY input.name
ON CONFLICT (job_type) DO UPDATE
    SET since = excluded.since, reason = excluded.reason, by = excluded.by,
        until = excluded.until, lifted_at = NULL
    WHERE known.lifted_at < coalesce(%(crashed_at)s::timestamptz, 'infinity')
RETURNING job_type
"""
# A job type that gets a new name while quarantined is quarantined under that as well.
SPREAD = """
INSERT INTO django_jobs_quarantine (job_type, since, reason, by, until)
SELECT input.name, known.since, known.reason, known.by, known.until
FROM django_jobs_quarantine AS known, unnest(%(names)s::text[]) AS input (name)
WHERE known.job_type = %(name)s AND known.lifted_at IS NULL
ORDER BY input.name
ON CONFLICT (job_type) DO NOTHING
RETURNING job_type
"""
LIFT = """
UPDATE django_jobs_quarantine SET lifted_at = clock_timestamp(), until = NULL
WHERE job_type = ANY(%(names)s::text[]) AND lifted_at IS NULL
  AND (NOT %(ended)s OR until <= clock_timestamp())
RETURNING job_type
"""
IN_FORCE = "SELECT job_type FROM django_jobs_quarantine WHERE lifted_at IS NULL ORDER BY job_type"

# Looks at one page of a queue in the order of the claims, because that index has no job types. Jobs
# that another session has locked are found at the next walk.
BLOCK = """
WITH page AS MATERIALIZED (
    SELECT rank, id, job_type FROM django_jobs_job_live
    WHERE queue = %(queue)s AND status = 'ready'
      AND (rank, id) > (%(rank)s::float8, %(id)s::bigint)
    ORDER BY rank, id
    LIMIT %(page)s
), found AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE status = 'ready' AND id = ANY(ARRAY(
        SELECT id FROM page WHERE job_type IN (
            SELECT job_type FROM django_jobs_quarantine WHERE lifted_at IS NULL)))
    FOR NO KEY UPDATE SKIP LOCKED
), blocked AS (
    UPDATE django_jobs_job_live AS job SET status = 'blocked', reason = 'quarantined'
    WHERE job.id = ANY(ARRAY(SELECT id FROM found))
    RETURNING job.id
)
SELECT rank, id, (SELECT count(*) FROM page), (SELECT count(*) FROM blocked)
FROM page ORDER BY rank DESC, id DESC LIMIT 1
"""

# Steps from one job type to the next in the index, so that a million jobs of one type cost one
# step. Starts from the jobs and not from the quarantines, so that deleting a quarantine's row
# cannot leave its jobs blocked for ever.
TYPES_TO_UNBLOCK = """
WITH RECURSIVE blocked AS (
    (SELECT job_type FROM django_jobs_job_live WHERE status = 'blocked' AND reason = 'quarantined'
     ORDER BY job_type LIMIT 1)
    UNION ALL
    SELECT (SELECT job.job_type FROM django_jobs_job_live AS job
            WHERE job.status = 'blocked' AND job.reason = 'quarantined'
              AND job.job_type > blocked.job_type
            ORDER BY job.job_type LIMIT 1)
    FROM blocked WHERE blocked.job_type IS NOT NULL
)
SELECT blocked.job_type FROM blocked
WHERE blocked.job_type IS NOT NULL AND blocked.job_type NOT IN (
    SELECT job_type FROM django_jobs_quarantine WHERE lifted_at IS NULL)
"""
UNBLOCK = f"""
WITH picked AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE status = 'blocked' AND reason = 'quarantined' AND job_type = %(job_type)s
    ORDER BY job_type, id
    LIMIT %(page)s
    FOR NO KEY UPDATE SKIP LOCKED
), freed AS (
    UPDATE django_jobs_job_live AS job SET status = {AT_THE_GATES}, reason = '',
        ready_at = clock_timestamp()
    WHERE job.id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING job.queue
)
SELECT queue, count(*) FROM freed GROUP BY queue
"""

# By job type as stored on the jobs: how many runs crashed since its quarantine was last lifted, and
# when the first of these did.
CRASHES = """
SELECT job.job_type, count(*), min(crashed.finished_at)
FROM (
    SELECT job_id, finished_at FROM django_jobs_run
    WHERE outcome = 'lost' AND error_type = 'Crashed'
      AND finished_at > statement_timestamp() - make_interval(secs => %(seconds)s::float8)
    ORDER BY finished_at DESC
    LIMIT %(most)s
) AS crashed
JOIN django_jobs_job AS job ON job.id = crashed.job_id
LEFT JOIN django_jobs_quarantine AS known ON known.job_type = job.job_type
WHERE known.job_type IS NULL OR crashed.finished_at > known.lifted_at
GROUP BY job.job_type
"""

ANY = """(
    EXISTS (SELECT FROM django_jobs_quarantine WHERE lifted_at IS NULL)
    OR EXISTS (SELECT FROM django_jobs_job_live
               WHERE status = 'blocked' AND reason = 'quarantined'))"""
ANY_CRASH = """EXISTS (
    SELECT FROM django_jobs_run WHERE outcome = 'lost' AND error_type = 'Crashed'
      AND finished_at > statement_timestamp() - make_interval(secs => {seconds}))"""


@dataclass(frozen=True, slots=True)
class Crashes:
    """How many runs of a job type crashed, and when the first of them ended."""

    count: int
    first: datetime


@dataclass(frozen=True, slots=True)
class Step:
    """One page of a queue: where it ended, whether there may be more, how many were blocked."""

    last: QueuePosition
    is_full: bool
    blocked: int


def quarantine(
    job_type: str,
    *,
    actor: Actor = None,
    reason: str = "",
    by: str = "",
    crashed_at: datetime | None = None,
    until: datetime | None = None,
    seconds: float = MOVE_SECONDS,
) -> list[str]:
    """Quarantine a job type under all its names: no job of it starts, and jobs that run are not
    affected. Returns the names that were not quarantined before. Blocks ready jobs for up to
    ``seconds``; the workers' maintenance task, which is notified, blocks the rest.

    ``crashed_at`` is when the first of the crashes happened that are the reason. A name whose
    quarantine was lifted after that is left alone.
    """
    demand(actor, "django_jobs.quarantine_job_type", reason)
    parameters = {
        "names": family(job_type),
        "reason": reason[:300],
        "by": (name_of(actor) or by)[:150],
        "crashed_at": crashed_at,
        "until": until,
    }
    names = sorted(name for (name,) in fetch(QUARANTINE, parameters))
    deadline = time.monotonic() + seconds
    for queue in Queue.objects.names() if names else ():
        position, is_full = START, True
        while is_full and time.monotonic() < deadline:
            step = block(queue, position, PAGE)
            position, is_full = step.last, step.is_full
    if names:
        notify_after_commit(QUARANTINED)
    return names


def lift(
    job_type: str, *, actor: Actor = None, seconds: float = MOVE_SECONDS, ended: bool = False
) -> list[str]:
    """Lift the quarantine of a job type under all its names; if ``ended``, of those whose time is
    over. Returns the names that were quarantined.

    Blocked jobs take their old places in their queues. They are moved for up to ``seconds``; the
    maintenance task moves the rest.
    """
    demand(actor, "django_jobs.quarantine_job_type")
    lifted = sorted(name for (name,) in fetch(LIFT, {"names": family(job_type), "ended": ended}))
    deadline = time.monotonic() + seconds
    for name in lifted:
        while unblock(name) >= PAGE and time.monotonic() < deadline:
            pass
    return lifted


def spread(names: Sequence[str]) -> list[str]:
    """Extend quarantines to later names of their job types. Returns the names added."""
    new: list[str] = []
    for name in names:
        others = sorted(set(family(name)) - set(names))
        if others:
            new += [one for (one,) in fetch(SPREAD, {"name": name, "names": others})]
    return new


def in_force() -> list[str]:
    return [name for (name,) in fetch(IN_FORCE, {})]


def block(queue: str, after: QueuePosition = START, page: int = PAGE) -> Step:
    """Block the jobs of quarantined types among the next ``page`` ready jobs of a queue."""
    rows = fetch(BLOCK, {"queue": queue, "rank": after[0], "id": after[1], "page": page})
    if not rows:
        return Step(after, False, 0)
    ((rank, id_, seen, blocked),) = rows
    return Step((rank, id_), seen >= page, blocked)


def types_to_unblock() -> list[str]:
    """The job types of blocked jobs whose quarantine is over."""
    return [name for (name,) in fetch(TYPES_TO_UNBLOCK, {})]


def unblock(name: str, page: int = PAGE) -> int:
    """Make up to ``page`` blocked jobs of this name ready, notify their queues; return how many."""
    moved = fetch(UNBLOCK, {"job_type": name, "page": page})
    for queue, _ in moved:
        notify_after_commit(queue)
    return sum(count for _, count in moved)


def crashes(seconds: float) -> dict[str, Crashes]:
    """The crashed runs of the last ``seconds``, by the present name of each job type. Leaves out
    quarantined types, and crashes from before a quarantine was lifted."""
    by_name: dict[str, Crashes] = {}
    for name, count, first in fetch(CRASHES, {"seconds": seconds, "most": MOST_CRASHES}):
        present = family(name)[0]
        before = by_name.get(present, Crashes(0, first))
        by_name[present] = Crashes(before.count + count, min(before.first, first))
    return by_name
