"""ready -> blocked: jobs that nobody claims, because their queue is paused or no worker serves it,
give up the slots that they hold."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction

from ..models.database import fetch, jobs_connection
from .notifying import GATES, notify_after_commit

# Each part reads an index of the jobs that hold slots. One that a worker is claiming is locked and
# stays.
GIVE_UP_SLOTS = """
WITH held AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE concurrency_key IS NOT NULL AND status IN ('ready', 'running') AND status = 'ready'
      AND queue = ANY(%(queues)s::text[])
    UNION
    SELECT id FROM django_jobs_job_live
    WHERE tenant IS NOT NULL AND status IN ('ready', 'running') AND status = 'ready'
      AND queue = ANY(%(queues)s::text[])
    UNION
    SELECT id FROM django_jobs_job_live
    WHERE resources IS NOT NULL AND status IN ('ready', 'running') AND status = 'ready'
      AND queue = ANY(%(queues)s::text[])
), free AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE id = ANY(ARRAY(SELECT id FROM held)) AND status = 'ready' AND gates IS NOT NULL
    ORDER BY id
    LIMIT %(most)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_job_live AS job SET status = 'blocked'
WHERE job.id = ANY(ARRAY(SELECT id FROM free))
RETURNING job.id
"""


SERVED = """
SELECT jsonb_array_elements_text(queues) AS queue FROM django_jobs_worker
WHERE status = 'running' AND lease_expires_at > statement_timestamp()
"""
"""The queues that running workers serve."""
CLOSED = f"""
SELECT name FROM django_jobs_queue
WHERE paused_at IS NOT NULL OR name NOT IN ({SERVED})
"""


BATCH = 10_000
"""Jobs that one sweep blocks. Then another follows at once."""


def give_up_slots(queues: Collection[str], most: int | None = None) -> int:
    """Block the ready jobs of these queues that have gates, or ``most`` of them, in the transaction
    of the caller. Returns how many."""
    parameters = {"queues": list(queues), "most": most}
    blocked = len(fetch(GIVE_UP_SLOTS, parameters)) if queues else 0
    if blocked:
        notify_after_commit(GATES)
    return blocked


def give_up_slots_of_closed() -> int:
    """The same for up to 10,000 jobs of all queues that are paused, or that no running worker
    serves: a job became ready there when a worker gave it back or was lost, or during the pause.
    Returns how many."""
    with transaction.atomic(using=jobs_connection().alias):
        return give_up_slots([name for (name,) in fetch(CLOSED, {})], BATCH)
