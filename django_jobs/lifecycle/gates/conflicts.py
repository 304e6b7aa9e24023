"""What becomes of jobs whose concurrency key has no free slot, if they do not just wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db import transaction

from ...domain.admission import Line
from ...domain.gates import Gates, OnConflict
from ...models.database import fetch, jobs_connection, repeat_conflicts
from ..job_columns import DROPPED
from ..opening import follow_dropped
from ..operations.jobs import cancel

MOST = 1_000
"""Jobs that one call ends. The next admission ends the others."""

# A job that became ready meanwhile is not blocked any more, and stays. One that has begun is not
# discarded: it has been accepted, and waits for the slot of its next attempt.
END_BLOCKED = f"""
WITH picked AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE status = 'blocked' AND gates IS NOT NULL AND gates = ANY(%(gates)s::text[])
      AND CASE WHEN %(newest)s::bigint IS NULL THEN attempt = 0 ELSE id < %(newest)s::bigint END
    ORDER BY gates, rank, id
    LIMIT %(most)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_job AS job SET status = {DROPPED}, finished_at = clock_timestamp(),
    reason = %(reason)s
WHERE job.id = ANY(ARRAY(SELECT id FROM picked)) AND job.status = 'blocked'
RETURNING job.id, job.workflow_run_id
"""
# The line is read first: for the newest id the planner would read the primary key from its end.
NEWEST = """
WITH line AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE status = 'blocked' AND gates IS NOT NULL AND gates = ANY(%(gates)s::text[])
)
SELECT max(id) FROM line
"""
TAKEN_SLOTS = """
SELECT count(*) FROM django_jobs_job_live
WHERE concurrency_key IS NOT NULL AND status IN ('ready', 'running')
  AND concurrency_key = %(key)s
"""
# The newest jobs of the key keep its slots, or get them.
OLDER = """
WITH job AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE status = 'blocked' AND gates IS NOT NULL AND gates = ANY(%(gates)s::text[])
    UNION ALL
    SELECT id FROM django_jobs_job_live
    WHERE concurrency_key IS NOT NULL AND status IN ('ready', 'running')
      AND concurrency_key = %(key)s AND cancel_requested_at IS NULL
)
SELECT id FROM job ORDER BY id DESC
OFFSET %(limit)s LIMIT %(most)s
"""


def resolve(lines: Iterable[Line]) -> None:
    """End what the ``on_conflict`` of these lines says, after those of their jobs that had room
    were admitted. Lines that differ in their queue alone are one."""
    alike: dict[Gates, list[str]] = defaultdict(list)
    for line in lines:
        if line.gates.key is not None and line.gates.on_conflict != OnConflict.WAIT:
            alike[line.gates.in_queue("")].append(line.text)
    for gates, texts in alike.items():
        _resolve(gates, texts)


def _resolve(gates: Gates, lines: list[str]) -> None:
    parameters = {
        "gates": lines,
        "key": gates.key,
        "limit": gates.limit,
        "most": MOST,
        "newest": None,
    }
    if gates.on_conflict == OnConflict.DISCARD:
        ((taken,),) = fetch(TAKEN_SLOTS, parameters)
        if taken >= gates.limit:
            why = f"discarded: all slots of the concurrency key {gates.key} were taken"
            _end_blocked(parameters | {"reason": why})
    elif gates.on_conflict == OnConflict.REPLACE_WAITING:
        ((newest,),) = fetch(NEWEST, parameters)
        if newest is not None:
            why = f"replaced: job {newest} has the same concurrency key {gates.key}"
            _end_blocked(parameters | {"newest": newest, "reason": why})
    else:
        older = [id_ for (id_,) in fetch(OLDER, parameters)]
        if older:
            why = f"replaced: newer jobs have the concurrency key {gates.key}"
            cancel(older, reason=why, wait=False)


@repeat_conflicts
def _end_blocked(parameters: dict[str, Any]) -> None:
    with transaction.atomic(using=jobs_connection().alias):
        follow_dropped(fetch(END_BLOCKED, parameters))
