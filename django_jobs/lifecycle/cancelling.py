"""waiting, scheduled, blocked, ready -> cancelled, and the request that a running job stops."""

from __future__ import annotations

from collections.abc import Iterable

from ..models.database import fetch
from .notifying import CANCELLED, notify_after_commit

CANCEL_PENDING = """
UPDATE django_jobs_job SET status = 'cancelled', finished_at = clock_timestamp(),
    cancel_requested_at = clock_timestamp(), reason = %(reason)s, awaits = NULL
WHERE id = ANY(%(ids)s::bigint[]) AND status IN ('waiting', 'scheduled', 'blocked', 'ready')
RETURNING id, workflow_run_id, gates IS NOT NULL
"""
# The first reason is kept, and that of a stop by force replaces it. The settle keeps it too.
ASK_TO_CANCEL = """
UPDATE django_jobs_job_live
SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
    force_requested_at = coalesce(
        force_requested_at, CASE WHEN %(force)s::boolean THEN clock_timestamp() END),
    reason = CASE WHEN cancel_requested_at IS NULL
                       OR (%(force)s::boolean AND force_requested_at IS NULL)
                  THEN %(reason)s ELSE reason END
WHERE id = ANY(%(ids)s::bigint[]) AND status = 'running'
RETURNING id
"""
ENDS_AMONG = """
SELECT count(*) FROM unnest(%(ids)s::bigint[]) AS step (id)
WHERE NOT EXISTS (
    SELECT 1 FROM django_jobs_dependency AS edge WHERE edge.parent_id = step.id OFFSET 0)
"""
LOCK_FREE_STEPS = """
SELECT id FROM django_jobs_job_live
WHERE workflow_run_id = %(run)s AND status <> 'dead'
  AND NOT (status = 'running' AND cancel_requested_at IS NOT NULL)
LIMIT %(page)s
FOR NO KEY UPDATE SKIP LOCKED
"""


def cancel_steps(ids: Iterable[int], why: str) -> int:
    """Cancel those of these steps, which are locked, that have not begun, and ask the others to
    stop. Opens nothing. Returns how many of the cancelled ones no other step waits for."""
    parameters = {"ids": list(ids), "reason": why, "force": False}
    cancelled = [id_ for id_, *_ in fetch(CANCEL_PENDING, parameters)]
    if fetch(ASK_TO_CANCEL, parameters):
        notify_after_commit(CANCELLED)
    ((ends,),) = fetch(ENDS_AMONG, {"ids": cancelled})
    return int(ends)


def cancel_free_steps(run: int, why: str, page: int) -> int:
    """The same with all live steps of a run that no other session has locked, a page at a time: the
    caller has locked steps, and so waits for none. The others are left to maintenance."""
    ends = 0
    while ids := [id_ for (id_,) in fetch(LOCK_FREE_STEPS, {"run": run, "page": page})]:
        ends += cancel_steps(ids, why)
        if len(ids) < page:
            break
    return ends
