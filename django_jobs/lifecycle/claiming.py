"""ready -> running: the only way in."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from django.db import transaction
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int8

from ..conf import conf
from ..exceptions import LeaseLost
from ..models.database import fetch, fetch_locking, fetch_planned, jobs_connection, repeat_conflicts
from .job_columns import CLAIMED, ClaimedJob, QueuePosition

UNBOUNDED = 2**62

START: QueuePosition = (float("-inf"), 0)

# A claim names the partition of the live jobs, because the job stays there. ``job_type = ANY(...)``
# skips jobs this worker has no handler for; the next condition skips
# payloads newer than the handler can read. Quarantined types are read once, by NOT IN: for
# ``<> ALL (ARRAY(...))`` the planner expects next to no rows and sorts the whole backlog. The row
# comparison continues behind the last claim. The index entries before it are dead, but stay while
# another session holds an old snapshot; reading them again made claims six times slower. The two
# EXISTS are evaluated once per statement, not per row. They are false for a paused queue, for a
# queue with a limit that this claim does not count, and for a worker that was declared lost.
FROM_READY = """FROM django_jobs_job_live
    WHERE queue = %(queue)s AND status = 'ready'
      AND (rank, id) > (%(rank)s::float8, %(id)s::bigint)
      AND job_type = ANY(%(job_types)s::text[])
      AND (payload_version <= 1
           OR payload_version <= (%(versions)s::jsonb -> job_type::text)::integer)
      AND job_type NOT IN (SELECT job_type FROM django_jobs_quarantine WHERE lifted_at IS NULL)
      AND EXISTS (SELECT 1 FROM django_jobs_queue WHERE name = %(queue)s
                  AND paused_at IS NULL AND (max_concurrency IS NULL OR %(within_limit)s))
      AND EXISTS (SELECT 1 FROM django_jobs_worker WHERE id = %(worker)s
                  AND status IN ('running', 'draining'))
    ORDER BY rank, id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED"""

# ``least()`` keeps an attempt at the maximum of its column, which only a row written by hand
# reaches. Otherwise the statement would fail, and with it every claim of the queue. If that attempt
# has a run already, its settle is refused and the job ends dead with that reason.
SET_RUNNING = """UPDATE django_jobs_job_live AS job
SET status = 'running', attempt = least(job.attempt, 2147483646) + 1, worker_id = %(worker)s,
    claimed_at = clock_timestamp(), started_at = NULL"""

# The picked rows are found by an array, not by a join: on a table of some ten thousand rows the
# planner would read the whole table for a hash join, 8.7 ms instead of 1.5 for a claim of 200.
CLAIM = f"""
WITH picked AS MATERIALIZED (
    SELECT id
    {FROM_READY}
)
{SET_RUNNING}
WHERE job.id = ANY(ARRAY(SELECT id FROM picked))
RETURNING {CLAIMED}
"""

# A worker with async handlers claims for its threads and for its event loop apart. A suspect runs
# alone in a child, for which a thread waits, so it is a job for the threads.
SUSPECTS_OF_ASYNC = "(crashes > 0 OR NOT job_type = ANY(%(async_types)s::text[]))"
NO_SUSPECTS = "crashes = 0"

# Claims the picked rows in order until their payloads and headers fill the byte limit, and the
# first row in any case. Sizes are those of the stored values, because reading them would take as
# long as the rest. A compressed one counts as the most that it can expand to: 256 times its size,
# or the largest payload allowed. A statement apart, because it makes a claim of one job a tenth
# slower.
BYTES = """CASE WHEN pg_column_compression({0}) IS NULL THEN pg_column_size({0})
        ELSE least(256::bigint * pg_column_size({0}), %(largest)s) END"""
CLAIM_WITHIN_BYTES = f"""
WITH picked AS MATERIALIZED (
    SELECT id, {BYTES.format("payload")} + {BYTES.format("headers")} AS bytes
    {FROM_READY}
), summed AS (
    SELECT id, bytes, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) AS up_to FROM picked
)
{SET_RUNNING}
WHERE job.id = ANY(ARRAY(
    SELECT id FROM summed WHERE up_to <= %(bytes)s::bigint OR up_to = bytes))
RETURNING {CLAIMED}
"""


def _narrowed(statement: str, condition: str) -> str:
    return statement.replace(
        "    ORDER BY rank, id", f"      AND {condition}\n    ORDER BY rank, id"
    )


CLAIM_FOR_THREADS = _narrowed(CLAIM, SUSPECTS_OF_ASYNC)
CLAIM_FOR_THREADS_WITHIN_BYTES = _narrowed(CLAIM_WITHIN_BYTES, SUSPECTS_OF_ASYNC)
CLAIM_FOR_LOOP = _narrowed(CLAIM, NO_SUSPECTS)
CLAIM_FOR_LOOP_WITHIN_BYTES = _narrowed(CLAIM_WITHIN_BYTES, NO_SUSPECTS)


class Slots(Enum):
    """For what a worker claims, with the statement for it and the one within bytes."""

    ANY = CLAIM, CLAIM_WITHIN_BYTES
    """All that it has handlers for."""
    THREADS = CLAIM_FOR_THREADS, CLAIM_FOR_THREADS_WITHIN_BYTES
    """Of the async job types only the suspects."""
    LOOP = CLAIM_FOR_LOOP, CLAIM_FOR_LOOP_WITHIN_BYTES
    """No suspects."""


CLAIMED_BY = f"""
SELECT {CLAIMED}, job.worker_id
FROM django_jobs_job_live AS job
WHERE job.worker_id = %(worker)s AND job.status = 'running'
  AND (%(ids)s::bigint[] IS NULL OR job.id = ANY(%(ids)s::bigint[]))
ORDER BY job.id
"""

# Skips rows that another session has locked.
TAKE_CLAIMED_BY = f"{CLAIMED_BY} FOR NO KEY UPDATE OF job SKIP LOCKED"

# Locks the queue's row, so that two claims of one limited queue count one after the other. The
# count is a separate statement, because a statement does not see what was committed while it waited
# for a lock.
LOCK_QUEUE = """
SELECT max_concurrency FROM django_jobs_queue WHERE name = %(queue)s FOR NO KEY UPDATE
"""
COUNT_RUNNING = """
SELECT count(*) FROM django_jobs_job_live WHERE status = 'running' AND queue = %(queue)s
"""


def claim(
    queue: str,
    *,
    worker: int,
    job_types: Mapping[str, int],
    limit: int,
    after: QueuePosition = START,
    limited: bool = False,
    most_bytes: int = UNBOUNDED,
    slots: Slots = Slots.ANY,
    async_types: Sequence[str] = (),
) -> list[ClaimedJob]:
    """Claim up to ``limit`` ready jobs of one queue for ``worker``; return them best rank first.

    ``job_types`` maps the names that the worker has handlers for to the newest payload version that
    each handler reads. ``after`` continues behind a position in the queue. ``limited`` states that
    the queue has a ``max_concurrency``; the claim then keeps to it, counting the running jobs of
    all workers. Without ``limited`` nothing is claimed from a queue that has one. ``most_bytes``
    bounds the memory that payloads and headers take, except that of the first job; it is counted
    only if the payloads alone could exceed it. ``slots`` says what is to run them;
    ``Slots.THREADS`` needs the names of the ``async_types``.
    """
    largest = conf().max_payload_bytes
    whole, within_bytes = slots.value
    statement = whole if limit * largest <= most_bytes else within_bytes
    parameters: dict[str, Any] = {
        "queue": queue,
        "rank": after[0],
        "id": Int8(after[1]),
        **_known(tuple(job_types.items())),
        "worker": Int8(worker),
        "limit": Int8(limit),
        "within_limit": limited,
        "bytes": most_bytes,
        "largest": largest,
        "async_types": list(async_types),
    }
    if not limited:
        return _claimed_jobs(fetch_locking(statement, parameters), worker)
    return _claimed_jobs(_claim_within_limit(statement, parameters), worker)


@repeat_conflicts
def _claim_within_limit(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with transaction.atomic(using=jobs_connection().alias):
        rows = fetch(LOCK_QUEUE, parameters)
        if not rows:
            return []
        limit = parameters["limit"]
        if rows[0][0] is not None:
            (running,) = fetch(COUNT_RUNNING, parameters)[0]
            limit = min(limit, rows[0][0] - running)
        if limit <= 0:
            return []
        return fetch_planned(statement, {**parameters, "limit": Int8(limit)})


def claimed_by(
    worker: int, ids: Sequence[int] | None = None, *, lock: bool = False
) -> list[ClaimedJob]:
    """The running jobs of ``worker``, or those of them in ``ids``, in the order of their ids.

    ``lock`` locks the rows until the transaction ends and skips those that another session has
    locked.
    """
    parameters = {"worker": worker, "ids": None if ids is None else list(ids)}
    rows = fetch(TAKE_CLAIMED_BY if lock else CLAIMED_BY, parameters)
    now = time.monotonic()
    return [ClaimedJob._make((*row, now)) for row in rows]


@lru_cache(maxsize=4)
def _known(job_types: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """The parameters that name job types, as text: encoding a hundred names takes a tenth of the
    time of a claim of one job."""
    names = [name for name, _ in job_types]
    array = Transformer().get_dumper(names, PyFormat.TEXT).dump(names) or b"{}"
    newer = {name: version for name, version in job_types if version > 1}
    return {"job_types": bytes(array).decode(), "versions": json.dumps(newer)}


def _claimed_jobs(rows: list[tuple[Any, ...]], worker: int) -> list[ClaimedJob]:
    rows.sort()  # by (rank, id): an UPDATE returns rows in no order
    now = time.monotonic()
    return [ClaimedJob._make((*row, worker, now)) for row in rows]


def lease_lost(job: ClaimedJob) -> LeaseLost:
    """The error for an attempt that no longer owns its job."""
    return LeaseLost(f"job {job.id} attempt {job.attempt} is no longer this worker's")
