"""Settle the jobs of workers that are gone."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from django.db import OperationalError, transaction

from ..domain.outcomes import Lost, Outcome
from ..models.database import execute, fetch, is_blocked, jobs_connection, repeat_conflicts
from .claiming import claimed_by
from .history import WAIT_A_MOMENT
from .job_columns import ClaimedJob, Fence
from .notifying import notify
from .settling import Ending, Settled
from .settling_rows import give_back_row_by_row, settle_row_by_row
from .workers import end

BATCH = 500

BLOCKED_SECONDS = 1.0
"""How long one call may wait for the locks of other sessions, all in all."""

OUT_OF_LEASE = "its lease ran out"

# Also finds the jobs of a worker whose row was deleted, and a claim that committed at the moment
# its worker was declared lost.
_ABANDONED = """FROM django_jobs_job_live AS job
LEFT JOIN django_jobs_worker AS worker ON worker.id = job.worker_id
WHERE job.status = 'running' AND (worker.id IS NULL OR worker.status IN ('lost', 'stopped'))"""

_EXPIRED = "status IN ('running', 'draining') AND lease_expires_at < statement_timestamp()"
ANY_LOST = f"""(
    EXISTS (SELECT FROM django_jobs_worker WHERE {_EXPIRED}) OR EXISTS (SELECT {_ABANDONED}))"""

# Compares leases by the database's clock. A worker that is marked as lost cannot renew. The latest
# time is for a server that reads this long after it was sent: its client cannot take it back. Those
# who are lost by it are not yet so for the second EXISTS.
DECLARE_LOST = f"""
WITH expired AS MATERIALIZED (
    SELECT id FROM django_jobs_worker
    WHERE {_EXPIRED}
      AND statement_timestamp() <= coalesce(%(latest)s::timestamptz, 'infinity')
    ORDER BY id
    LIMIT 100
    FOR UPDATE SKIP LOCKED
), lost AS (
    UPDATE django_jobs_worker AS worker
    SET status = 'lost', stopped_at = clock_timestamp(), stop_reason = '{OUT_OF_LEASE}'
    FROM expired WHERE worker.id = expired.id
)
SELECT statement_timestamp(),
    EXISTS (SELECT FROM expired) OR EXISTS (SELECT {_ABANDONED})
"""

# In any order, or 500 that are blocked would hide the others each time.
ABANDONED = f"""
SELECT job.worker_id, job.id {_ABANDONED}
ORDER BY random()
LIMIT %(limit)s
FOR NO KEY UPDATE OF job SKIP LOCKED
"""


def reap() -> list[Settled]:
    """Mark the workers whose lease ran out as lost, and settle up to 500 jobs that such workers, or
    stopped or deleted ones, still hold. Return what was settled.

    Each of these jobs counts as lost, because it is unknown which had started. Skips locked jobs,
    and steps whose run another session has locked, or a step after them. Notifies the queues.
    """
    _, abandoned = declare_lost()
    return settle_abandoned() if abandoned else []


def declare_lost(latest: datetime | None = None) -> tuple[datetime, bool]:
    """Mark up to 100 workers whose lease ran out as lost; none if it is later than ``latest`` when
    the database reads this. Return the time by which the leases were compared, and whether there
    may be jobs for :func:`settle_abandoned`."""
    ((now, abandoned),) = fetch(DECLARE_LOST, {"latest": latest})
    return now, abandoned


def settle_abandoned() -> list[Settled]:
    """Settle jobs of workers that are lost, stopped or deleted, as :func:`reap` does."""
    settled = _settle_abandoned()
    for queue in {one.ending.job.queue for one in settled}:
        notify(queue)
    return settled


@repeat_conflicts
def _settle_abandoned() -> list[Settled]:
    def settle(jobs: Sequence[ClaimedJob]) -> list[Settled]:
        reason = "worker {} stopped renewing its lease"
        return settle_row_by_row(
            [Ending(job, Lost(reason=reason.format(job.worker))) for job in jobs]
        )

    with transaction.atomic(using=jobs_connection().alias):
        abandoned: dict[int, list[int]] = {}
        for worker, id_ in fetch(ABANDONED, {"limit": BATCH}):
            abandoned.setdefault(worker, []).append(id_)
        held: list[ClaimedJob] = []
        for worker, ids in abandoned.items():
            held += claimed_by(worker, ids, lock=True)
        return _unless_blocked(held, settle)


def _unless_blocked(
    jobs: Sequence[ClaimedJob], work: Callable[[Sequence[ClaimedJob]], list[Settled]]
) -> list[Settled]:
    """Do this to these jobs; if another session's lock is in the way, do it to those of each
    workflow run alone, and leave out the blocked ones."""
    if not jobs:
        return []
    execute(WAIT_A_MOMENT, {})
    if (done := _try(jobs, work)) is not None:
        return done
    by_run: dict[int | None, list[ClaimedJob]] = defaultdict(list)
    for job in jobs:
        by_run[job.workflow_run_id].append(job)
    done = _try(by_run.pop(None, []), work) or []
    groups = list(by_run.values())
    random.shuffle(groups)  # those that the time is too short for come sooner next time
    until = time.monotonic() + BLOCKED_SECONDS
    while groups and time.monotonic() < until:
        done += _try(groups.pop(), work) or []
    return done


def _try(
    jobs: Sequence[ClaimedJob], work: Callable[[Sequence[ClaimedJob]], list[Settled]]
) -> list[Settled] | None:
    if not jobs:
        return []
    try:
        with transaction.atomic(using=jobs_connection().alias):
            return work(jobs)
    except OperationalError as error:
        if not is_blocked(error):
            raise
        return None


@repeat_conflicts
def recover_process(
    worker: int, outcomes: Mapping[Fence, Outcome], *, reason: str, status: str = "lost"
) -> list[Settled]:
    """Settle the claimed jobs of a process of this machine that died, and end its worker's row with
    ``status`` and ``reason``. Return what was settled.

    ``outcomes`` has the outcome of each attempt that had started. The other jobs were only
    prefetched and are given back. A job that another session has locked, or that cannot be given
    back, is left to :func:`reap`. So is a step whose run, or a step after it, is locked.
    """

    def give_back(jobs: Sequence[ClaimedJob]) -> list[Settled]:
        give_back_row_by_row([job.fence for job in jobs])
        return []

    def settle(jobs: Sequence[ClaimedJob]) -> list[Settled]:
        return settle_row_by_row([Ending(job, outcomes[job.fence]) for job in jobs])

    with transaction.atomic(using=jobs_connection().alias):
        end(worker, status=status, reason=reason)
        held = claimed_by(worker, lock=True)
        _unless_blocked([job for job in held if job.fence not in outcomes], give_back)
        settled = _unless_blocked([job for job in held if job.fence in outcomes], settle)
    for queue in {job.queue for job in held}:
        notify(queue)
    return settled
