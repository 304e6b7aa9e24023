"""ready -> blocked: jobs that nobody claims, because their queue is paused, no worker serves it or
none knows their type, give up the slots that they hold."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import transaction

from ..models.database import fetch, jobs_connection
from ..models.worker import IS_ALIVE
from . import known_types
from .job_columns import READABLE
from .notifying import GATES, notify_after_commit


def _give_up_slots(which: str) -> str:
    """The statement that blocks the ready jobs of which this condition is true.

    Each part reads an index of the jobs that hold slots. A job that a worker is claiming is locked
    and stays."""
    return f"""
WITH held AS MATERIALIZED (
    SELECT job.id FROM django_jobs_job_live AS job
    WHERE job.concurrency_key IS NOT NULL AND job.status IN ('ready', 'running')
      AND job.status = 'ready' AND {which}
    UNION
    SELECT job.id FROM django_jobs_job_live AS job
    WHERE job.tenant IS NOT NULL AND job.status IN ('ready', 'running')
      AND job.status = 'ready' AND {which}
    UNION
    SELECT job.id FROM django_jobs_job_live AS job
    WHERE job.resources IS NOT NULL AND job.status IN ('ready', 'running')
      AND job.status = 'ready' AND {which}
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


OF_QUEUES = "job.queue = ANY(%(queues)s::text[])"
GIVE_UP_SLOTS = _give_up_slots(OF_QUEUES)
GIVE_UP_SLOTS_OF_CLOSED = _give_up_slots(f"({OF_QUEUES} OR NOT ({READABLE}))")


SERVED = f"""
SELECT jsonb_array_elements_text(queues) AS queue FROM django_jobs_worker AS worker
WHERE status = 'running' AND {IS_ALIVE}
"""
"""The queues that running workers serve."""
CLOSED = f"""
SELECT name FROM django_jobs_queue
WHERE paused_at IS NOT NULL OR name NOT IN ({SERVED})
"""


PAUSES = """
SELECT 'queue' AS kind, name, paused_at AS since, paused_until AS until, paused_by AS by,
    paused_reason AS reason
FROM django_jobs_queue WHERE paused_at IS NOT NULL
UNION ALL
SELECT 'resource', name, paused_at, paused_until, paused_by, paused_reason
FROM django_jobs_resource WHERE paused_at IS NOT NULL
UNION ALL
SELECT 'tenant', name, paused_at, paused_until, paused_by, paused_reason
FROM django_jobs_tenant WHERE paused_at IS NOT NULL
UNION ALL
SELECT 'schedule', name, paused_at, paused_until, paused_by, paused_reason
FROM django_jobs_schedule WHERE paused_at IS NOT NULL
UNION ALL
SELECT 'job_type', job_type, since, until, by, reason
FROM django_jobs_quarantine WHERE lifted_at IS NULL
"""
"""All that is paused."""
ENDED = f"""
SELECT kind, name FROM ({PAUSES}) AS paused WHERE until <= statement_timestamp() LIMIT 1000
"""
NEWEST_PAUSES = f"""
SELECT kind, name, date_trunc('second', since)::text AS since,
    coalesce(date_trunc('second', until)::text, '') AS until, by, reason
FROM ({PAUSES}) AS paused ORDER BY paused.since DESC, kind, name LIMIT 1000
"""
"""Times as text: one may be infinite."""

ANY_ENDED = f"EXISTS ({ENDED})"
ANY_SLOT = """(
    EXISTS (SELECT FROM django_jobs_job_live
            WHERE concurrency_key IS NOT NULL AND status IN ('ready', 'running'))
    OR EXISTS (SELECT FROM django_jobs_job_live
               WHERE tenant IS NOT NULL AND status IN ('ready', 'running'))
    OR EXISTS (SELECT FROM django_jobs_job_live
               WHERE resources IS NOT NULL AND status IN ('ready', 'running')))"""
BATCH = 10_000
"""Jobs that one sweep blocks. Then another follows at once."""


def give_up_slots(queues: Collection[str]) -> int:
    """Block ready jobs with gates of these queues, in the caller's transaction; return how many."""
    return _blocked(GIVE_UP_SLOTS, {"queues": list(queues), "most": None}) if queues else 0


def give_up_slots_of_closed() -> int:
    """The same for up to 10,000 jobs of all queues that are paused, or that no running worker
    serves, and of types that no running worker knows: they became ready there when a worker gave
    them back or was lost, during the pause, or before the last worker that knew them ended. Returns
    how many."""
    with transaction.atomic(using=jobs_connection().alias):
        closed = [name for (name,) in fetch(CLOSED, {})]
        known = known_types.parameters(known_types.of_running_workers())
        return _blocked(GIVE_UP_SLOTS_OF_CLOSED, {"queues": closed, "most": BATCH, **known})


def _blocked(statement: str, parameters: dict[str, Any]) -> int:
    blocked = len(fetch(statement, parameters))
    if blocked:
        notify_after_commit(GATES)
    return blocked


def ended_pauses() -> list[tuple[str, str]]:
    """The kind and the name of up to 1,000 whose pause is over."""
    return [(kind, name) for kind, name in fetch(ENDED, {})]
