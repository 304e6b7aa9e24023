"""ready -> blocked: the jobs of a paused queue give up the slots that they hold."""

from __future__ import annotations

from collections.abc import Collection

from ..models.database import fetch
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
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_job_live AS job SET status = 'blocked'
WHERE job.id = ANY(ARRAY(SELECT id FROM free))
RETURNING job.id
"""


def give_up_slots(queues: Collection[str]) -> None:
    """Block the ready jobs of these queues that have gates, in the transaction of the pause."""
    if queues and fetch(GIVE_UP_SLOTS, {"queues": list(queues)}):
        notify_after_commit(GATES)
