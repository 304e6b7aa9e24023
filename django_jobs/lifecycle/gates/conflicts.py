"""What becomes of jobs whose concurrency key has no free slot, if they do not just wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.db import transaction

from ...domain.admission import Line
from ...domain.gates import Gates, OnConflict, parse
from ...models.database import fetch, jobs_connection, repeat_conflicts
from ..backlog import free_keys
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
UPDATE django_jobs_job AS job SET {DROPPED}, finished_at = clock_timestamp(),
    reason = %(reason)s
WHERE job.id = ANY(ARRAY(SELECT id FROM picked)) AND job.status = 'blocked'
RETURNING job.id, job.workflow_run_id, job.skipped, job.queue, job.idempotency_key
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
# The newest jobs of each type keep the slots that other types leave, or get them. At least one
# stays, which waits for the others.
OLDER = """
WITH job AS MATERIALIZED (
    SELECT id, job_type, false AS taken FROM django_jobs_job_live
    WHERE status = 'blocked' AND gates IS NOT NULL AND gates = ANY(%(gates)s::text[])
    UNION ALL
    SELECT id, job_type, true FROM django_jobs_job_live
    WHERE concurrency_key IS NOT NULL AND status IN ('ready', 'running')
      AND concurrency_key = %(key)s AND cancel_requested_at IS NULL
), placed AS (
    SELECT id, row_number() OVER (PARTITION BY job_type ORDER BY id DESC) AS place,
        bool_or(NOT taken) OVER (PARTITION BY job_type) AS waits,
        count(*) FILTER (WHERE taken) OVER ()
            - count(*) FILTER (WHERE taken) OVER (PARTITION BY job_type) AS of_others
    FROM job
)
SELECT id FROM placed WHERE waits AND place > greatest(%(limit)s - of_others, 1)
ORDER BY id DESC LIMIT %(most)s
"""
# From one line to the next in the index, as an admission, which may look at some of them alone.
LINES_OF_KEYS = """
WITH RECURSIVE line AS (
    SELECT ''::text COLLATE "C" AS gates, NULL::text AS key
    UNION ALL
    SELECT next.* FROM line CROSS JOIN LATERAL (
        SELECT job.gates, job.concurrency_key FROM django_jobs_job_live AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates > line.gates
        ORDER BY job.gates, job.rank, job.id LIMIT 1
    ) AS next
)
SELECT gates FROM line WHERE key = ANY(%(keys)s::text[])
"""


def resolve(lines: Iterable[Line], *, are_all: bool) -> None:
    """End what the ``on_conflict`` of these lines says, after those of their jobs that had room
    were admitted. Lines of one key and policy are one, although their jobs may wait for different
    gates, and although others of the key may be behind them if these are not ``all``."""
    texts = {line.text for line in lines if _ends_jobs(line.gates)}
    if texts and not are_all:
        keys = sorted({str(parse(text).key) for text in texts})
        with suppress(ValueError):  # a row that this package did not write
            found = [text for (text,) in fetch(LINES_OF_KEYS, {"keys": keys})]
            texts = {text for text in found if _ends_jobs(parse(text))}
    alike: dict[Gates, list[str]] = defaultdict(list)
    for text in sorted(texts):
        gates = parse(text)
        limit = 1 if gates.on_conflict == OnConflict.REPLACE_WAITING else gates.limit
        alone = Gates(queue="", key=gates.key, limit=limit, on_conflict=gates.on_conflict)
        alike[alone].append(text)
    for gates, lines_of_key in alike.items():
        _resolve(gates, lines_of_key)


def _ends_jobs(gates: Gates) -> bool:
    return gates.key is not None and gates.on_conflict != OnConflict.WAIT


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
        ended = fetch(END_BLOCKED, parameters)
        follow_dropped((id_, run, skipped) for id_, run, skipped, _, _ in ended)
        if parameters["newest"] is None:  # of a replaced one, the newer job does the work
            free_keys((queue, key, id_) for id_, _, _, queue, key in ended)
