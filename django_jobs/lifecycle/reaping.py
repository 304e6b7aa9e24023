"""Settle what workers held that are gone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.db import transaction

from ..domain.outcomes import Lost, Outcome
from ..models.database import fetch, jobs_connection
from .claiming import Fence, claimed_by
from .notifying import notify
from .settling import Ending, Settled
from .settling_rows import give_back_row_by_row, settle_row_by_row
from .workers import end

BATCH = 500

# A worker's lease is compared on the database's clock. Once marked, renewing refuses it.
DECLARE_LOST = """
WITH expired AS MATERIALIZED (
    SELECT id FROM django_jobs_worker
    WHERE status IN ('running', 'draining') AND lease_expires_at < statement_timestamp()
    ORDER BY id
    LIMIT 100
    FOR UPDATE SKIP LOCKED
)
UPDATE django_jobs_worker AS worker
SET status = 'lost', stopped_at = clock_timestamp(), stop_reason = 'its lease ran out'
FROM expired WHERE worker.id = expired.id
RETURNING worker.id
"""

# Also finds the jobs of a worker whose row somebody deleted, and a claim that committed in the
# instant its worker was declared lost.
ABANDONED = """
SELECT job.worker_id, job.id FROM django_jobs_job AS job
LEFT JOIN django_jobs_worker AS worker ON worker.id = job.worker_id
WHERE job.status = 'running' AND (worker.id IS NULL OR worker.status IN ('lost', 'stopped'))
ORDER BY job.worker_id, job.id
LIMIT %(limit)s
FOR NO KEY UPDATE OF job SKIP LOCKED
"""


def reap() -> list[Settled]:
    """Declare workers lost whose lease ran out and settle what they held, a batch at a time.

    Everything that such a worker held is lost: nobody can know which of it had started.
    """
    fetch(DECLARE_LOST, {})
    with transaction.atomic(using=jobs_connection().alias):
        abandoned: dict[int, list[int]] = {}
        for worker, id_ in fetch(ABANDONED, {"limit": BATCH}):
            abandoned.setdefault(worker, []).append(id_)
        settled: list[Settled] = []
        for worker, ids in abandoned.items():
            lost = Lost(reason=f"worker {worker} stopped renewing its lease")
            held = claimed_by(worker, ids, lock=True)
            settled += settle_row_by_row([Ending(job, lost) for job in held])
    _notify(settled)
    return settled


def recover_process(
    worker: int, outcomes: Mapping[Fence, Outcome], *, reason: str, status: str = "lost"
) -> list[Settled]:
    """Settle what a process of this machine held when it died, and close its row.

    ``outcomes`` says how each attempt ended that was in hand. What was merely prefetched
    is given back as if nothing had been. A job that somebody has locked, or that cannot be given
    back, is left for :func:`reap`.
    """
    with transaction.atomic(using=jobs_connection().alias):
        end(worker, status=status, reason=reason)
        held = claimed_by(worker, lock=True)
        give_back_row_by_row([job.fence for job in held if job.fence not in outcomes])
        endings = [Ending(job, outcomes[job.fence]) for job in held if job.fence in outcomes]
        settled = settle_row_by_row(endings) if endings else []
    for queue in {job.queue for job in held}:
        notify(queue)
    return settled


def _notify(settled: Collection[Settled]) -> None:
    for queue in {one.ending.job.queue for one in settled}:
        notify(queue)
