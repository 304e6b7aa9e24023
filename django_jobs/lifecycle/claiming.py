"""ready -> running: the only way in."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import transaction
from psycopg.adapt import PyFormat, Transformer

from ..conf import conf
from ..domain.decisions import Facts
from ..exceptions import LeaseLost
from ..models.database import fetch, jobs_connection

QueuePosition = tuple[float, int]
"""Where a job stands in its queue: ``(rank, id)``."""

UNBOUNDED = 2**62

START: QueuePosition = (float("-inf"), 0)

COLUMNS = """job.rank, job.id, job.attempt, job.queue, job.job_type, job.payload,
    job.payload_version, job.priority, date_part('epoch', job.available_at),
    job.failures, job.crashes, job.max_attempts, job.max_crashes, job.backoff, job.timeout,
    date_part('epoch', job.expires_at), job.idempotency_key, job.headers,
    job.cancel_requested_at IS NOT NULL, date_part('epoch', clock_timestamp()),
    date_part('epoch', job.scheduled_for), job.at_most_once"""
"""Of :class:`ClaimedJob`."""

# ``job_type = ANY`` leaves jobs that this process has no handler for to others, and so are those
# whose payload is newer than its handler. What is quarantined is read once, by NOT IN: of
# ``<> ALL (ARRAY(...))`` the planner expects next to no rows, and sorts the whole backlog. The row
# comparison continues behind the last claim: the entries before it are dead but, while somebody
# holds an old snapshot, not yet gone, and reading them again made claims six times slower.
# A queue with a limit, or paused, or of a worker declared lost, gives nothing: each is one lookup
# per statement, not per row.
FROM_READY = """FROM django_jobs_job
    WHERE queue = %(queue)s AND status = 'ready'
      AND (rank, id) > (%(rank)s::float8, %(id)s::bigint)
      AND job_type = ANY(%(job_types)s::text[])
      AND (payload_version <= 1
           OR payload_version <= (%(versions)s::jsonb -> job_type::text)::integer)
      AND job_type NOT IN (SELECT job_type FROM django_jobs_quarantine WHERE released_at IS NULL)
      AND EXISTS (SELECT 1 FROM django_jobs_queue WHERE name = %(queue)s
                  AND paused_at IS NULL AND (max_concurrency IS NULL OR %(within_limit)s))
      AND EXISTS (SELECT 1 FROM django_jobs_worker WHERE id = %(worker)s
                  AND status IN ('running', 'draining'))
    ORDER BY rank, id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED"""

# An attempt at the end of its column stays there: of a row written by hand the statement would
# fail, and with it every claim of the queue. If the attempt has a run already, its end is refused
# and the job is dead with that reason.
SET_RUNNING = """UPDATE django_jobs_job AS job
SET status = 'running', attempt = least(job.attempt, 2147483646) + 1, worker_id = %(worker)s,
    claimed_at = clock_timestamp(), started_at = NULL"""

# The picked are found again by an array and not by a join: of a table of some ten thousand rows
# the planner would read all for a hash join, 8.7 ms a claim of 200 instead of 1.5.
CLAIM = f"""
WITH picked AS MATERIALIZED (
    SELECT id
    {FROM_READY}
)
{SET_RUNNING}
WHERE job.id = ANY(ARRAY(SELECT id FROM picked))
RETURNING {COLUMNS}
"""

# What is picked is taken as far as its payloads fit into the bytes; the first in any case. Their
# sizes are as they are stored: reading them would take as long as the rest. What is compressed
# counts as the most that it can become, 256 times as much, or the largest payload there may be.
# A statement of its own because a claim of one job would take a tenth longer.
CLAIM_WITHIN_BYTES = f"""
WITH picked AS MATERIALIZED (
    SELECT id, CASE WHEN pg_column_compression(payload) IS NULL THEN pg_column_size(payload)
                    ELSE least(256::bigint * pg_column_size(payload), %(largest)s) END AS bytes
    {FROM_READY}
), summed AS (
    SELECT id, bytes, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) AS up_to FROM picked
)
{SET_RUNNING}
WHERE job.id = ANY(ARRAY(
    SELECT id FROM summed WHERE up_to <= %(bytes)s::bigint OR up_to = bytes))
RETURNING {COLUMNS}
"""

CLAIMED_BY = f"""
SELECT {COLUMNS}, job.worker_id
FROM django_jobs_job AS job
WHERE job.worker_id = %(worker)s AND job.status = 'running'
  AND (%(ids)s::bigint[] IS NULL OR job.id = ANY(%(ids)s::bigint[]))
ORDER BY job.id
"""

# What somebody else has locked is left out.
TAKE_CLAIMED_BY = f"{CLAIMED_BY} FOR NO KEY UPDATE OF job SKIP LOCKED"

# Locks the queue's row, so that two claims of one limited queue count one after the other. The
# count is a statement of its own because a statement does not see what committed while it waited.
LOCK_QUEUE = """
SELECT max_concurrency FROM django_jobs_queue WHERE name = %(queue)s FOR NO KEY UPDATE
"""
COUNT_RUNNING = """
SELECT count(*) FROM django_jobs_job WHERE status = 'running' AND queue = %(queue)s
"""


Fence = tuple[int, int, int]
"""A job, the number of its attempt, and the worker that makes it."""


class ClaimedJob(NamedTuple):
    """A running job as its worker holds it.

    ``payload``, ``backoff`` and ``headers`` are JSON text as the database gave it, so that a row
    that cannot be read fails alone, when its turn comes. Times are epoch seconds of the database,
    but for ``taken_at``, which is the moment of ``claimed_at`` as ``time.monotonic()``.
    """

    rank: float
    id: int
    attempt: int
    queue: str
    job_type: str
    payload: str
    payload_version: int
    priority: int
    available_at: float
    failures: int
    crashes: int
    max_attempts: int
    max_crashes: int
    backoff: str | None
    timeout: float | None
    expires_at: float | None
    idempotency_key: str | None
    headers: str
    cancel_requested: bool
    claimed_at: float
    scheduled_for: float | None
    at_most_once: bool
    worker: int
    taken_at: float = 0.0

    @property
    def position(self) -> QueuePosition:
        """Where the job stood in its queue."""
        return self.rank, self.id

    @property
    def fence(self) -> Fence:
        """What no other attempt has, of this job or of another."""
        return self.id, self.attempt, self.worker

    def is_expired(self, now: float) -> bool:
        """Whether its maximum age is over at ``now``, of ``time.monotonic()``."""
        if self.expires_at is None:
            return False
        return self.claimed_at + now - self.taken_at >= self.expires_at

    @property
    def is_suspect(self) -> bool:
        """Whether the last attempt's process died with it in hand. Then it runs alone."""
        return self.crashes > 0

    def facts(self, *, cancel_requested: bool = False) -> Facts:
        """What a decision about this job needs to know."""
        return Facts(
            failures=self.failures,
            crashes=self.crashes,
            max_attempts=self.max_attempts,
            max_crashes=self.max_crashes,
            backoff=_object_of(self.backoff),
            expires_at=self.expires_at,
            cancel_requested=cancel_requested or self.cancel_requested,
            at_most_once=self.at_most_once,
        )


def claim(
    queue: str,
    *,
    worker: int,
    job_types: Mapping[str, int],
    limit: int,
    after: QueuePosition = START,
    limited: bool = False,
    most_bytes: int = UNBOUNDED,
) -> list[ClaimedJob]:
    """Take up to ``limit`` ready jobs of one queue for ``worker``, best rank first.

    ``job_types`` are the names that it has handlers for, each with the newest version of a payload
    that its handler reads. ``after`` continues behind a place in the queue. ``limited`` says that
    the queue has a ``max_concurrency``; it is then kept for the whole fleet, counted from the
    running rows. An unlimited claim of a queue that has one meanwhile takes nothing.
    ``most_bytes`` bounds what their payloads take in memory, if it is more than one job.
    """
    largest = conf().max_payload_bytes
    statement = CLAIM if limit * largest <= most_bytes else CLAIM_WITHIN_BYTES
    parameters: dict[str, Any] = {
        "queue": queue,
        "rank": after[0],
        "id": after[1],
        **_known(tuple(job_types.items())),
        "worker": worker,
        "limit": limit,
        "within_limit": limited,
        "bytes": most_bytes,
        "largest": largest,
    }
    if not limited:
        return _claimed_jobs(fetch(statement, parameters), worker)
    with transaction.atomic(using=jobs_connection().alias):
        rows = fetch(LOCK_QUEUE, parameters)
        if not rows:
            return []
        if rows[0][0] is not None:
            (running,) = fetch(COUNT_RUNNING, parameters)[0]
            parameters["limit"] = min(limit, rows[0][0] - running)
        if parameters["limit"] <= 0:
            return []
        return _claimed_jobs(fetch(statement, parameters), worker)


def claimed_by(
    worker: int, ids: Sequence[int] | None = None, *, lock: bool = False
) -> list[ClaimedJob]:
    """The running jobs of ``worker``, or those among ``ids``.

    ``lock`` takes their rows until the transaction ends, except what somebody else has locked.
    """
    parameters = {"worker": worker, "ids": None if ids is None else list(ids)}
    rows = fetch(TAKE_CLAIMED_BY if lock else CLAIMED_BY, parameters)
    now = time.monotonic()
    return [ClaimedJob._make((*row, now)) for row in rows]


@lru_cache(maxsize=4)
def _known(job_types: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """The parameters that name job types, as text: to write a hundred names took a tenth of the
    time of a claim of one job."""
    names = [name for name, _ in job_types]
    array = Transformer().get_dumper(names, PyFormat.TEXT).dump(names) or b"{}"
    newer = {name: version for name, version in job_types if version > 1}
    return {"job_types": bytes(array).decode(), "versions": json.dumps(newer)}


def _claimed_jobs(rows: list[tuple[Any, ...]], worker: int) -> list[ClaimedJob]:
    rows.sort()  # by (rank, id): an UPDATE returns in no order
    now = time.monotonic()
    return [ClaimedJob._make((*row, worker, now)) for row in rows]


def _object_of(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def lease_lost(job: ClaimedJob) -> LeaseLost:
    """The exception for whoever writes about an attempt that is not its worker's any more."""
    return LeaseLost(f"job {job.id} attempt {job.attempt} is no longer this worker's")
