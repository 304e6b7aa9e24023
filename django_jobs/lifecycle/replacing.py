"""Insert a job, or replace the one that holds its idempotency key and has not started."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.db import IntegrityError, transaction

from ..conf import conf
from ..domain.gates import Gates
from ..domain.states import JobState
from ..models import Job
from ..models.database import execute, fetch, fetch_locking, jobs_connection, repeat_conflicts
from .bulk_insert import RowsDropped, insert, not_written
from .enqueueing import IF_HELD, KEY_ATTEMPTS, RETURNED, as_job
from .job_columns import NOW, NewJobs, gate_values, listed
from .notifying import GATES, notify_after_commit
from .opening import follow_cancelled
from .unique_keys import (
    HELD_BY_LIVE,
    IS_RESERVED,
    NEXT_ID,
    RESERVE,
    RESERVED,
    UNTIL,
    holder_of,
    release,
)

WRITTEN = {**RESERVED, "id": "item.id"}
KEPT = ("id", "queue", "idempotency_key", "created_at")
"""The columns of a new job that a replaced one keeps."""

# A job that waits for the one before it still does, and one with a place behind its gates keeps it
# unless it has others now. A handler that waits for a signal begins from the start.
STATUS = """CASE
        WHEN django_jobs_job_live.status = 'waiting' AND django_jobs_job_live.awaits IS NULL
            THEN 'waiting'
        WHEN django_jobs_job_live.status = 'ready' AND excluded.status = 'blocked'
            AND django_jobs_job_live.gates = excluded.gates THEN 'ready'
        ELSE excluded.status END"""

# The record of who replayed the job stays.
HEADERS = """CASE
        WHEN django_jobs_job_live.headers ? 'replays' THEN excluded.headers
            || jsonb_build_object('replays', django_jobs_job_live.headers -> 'replays')
        ELSE excluded.headers END"""

# What the job did before belongs to the request that is replaced, as for a replay, and so do its
# signals: an approval was for that payload.
REPLACED = {
    **{name: f"excluded.{name}" for name in WRITTEN if name not in KEPT},
    **{"status": STATUS, "headers": HEADERS},
    **{"failures": "0", "crashes": "0", "reason": "''"},
    **{"awaits": "NULL", "signals": "NULL", "retry_until": "NULL"},
}


def _replace(items: str) -> str:
    """The statement about ``item``, the id of a new job and the id for which a key is reserved. It
    returns a row without an id if the job that holds the key runs or is a step of a workflow, and
    none without an item."""
    return f"""
WITH {items}, made AS (
    {insert(WRITTEN, "FROM item")}
    {IF_HELD}
    DO UPDATE SET
    {listed(f"{name} = {value}" for name, value in REPLACED.items())}
    WHERE django_jobs_job_live.status <> 'running'
      AND django_jobs_job_live.workflow_run_id IS NULL
    RETURNING {", ".join(f"{value} AS {name}" for name, value in RETURNED.items())},
        attempt, created_at <> {NOW} AS is_replaced
), progress AS (
    DELETE FROM django_jobs_progress
    WHERE job_id = ANY(ARRAY(SELECT id FROM made WHERE attempt > 0))
), receipts AS (
    DELETE FROM django_jobs_receipt
    WHERE job_id = ANY(ARRAY(SELECT id FROM made WHERE attempt > 0))
)
SELECT {", ".join(f"made.{name}" for name in RETURNED)}, made.is_replaced, item.reserved_id
FROM item LEFT JOIN made ON true
"""


REPLACE = _replace(f"item AS (SELECT {NEXT_ID} AS id, NULL::bigint AS reserved_id)")
REPLACE_UNIQUE = _replace(f"""{RESERVE}, item AS (
    SELECT job_id AS id, job_id AS reserved_id FROM reserved
    UNION ALL
    SELECT {NEXT_ID}, NULL WHERE {HELD_BY_LIVE}
)""")

# A running job ends as it would have, and no longer holds the key.
TAKE_FROM_RUNNING = """
UPDATE django_jobs_job_live SET idempotency_key = NULL
WHERE queue = %(queue)s AND idempotency_key = %(key)s AND status = 'running'
RETURNING id
"""

# A step has more than its row: a run, a name in it, edges, children and what comes after them. None
# of it belongs to the new request, and a job is a step as soon as it spawns. A step has begun, so
# it ends as if a person cancelled it.
CANCEL_STEP = """
UPDATE django_jobs_job SET status = 'cancelled', finished_at = clock_timestamp(),
    cancel_requested_at = clock_timestamp(), awaits = NULL,
    reason = 'replaced: another request has its idempotency key'
WHERE queue = %(queue)s AND idempotency_key = %(key)s
  AND status IN ('waiting', 'scheduled', 'blocked', 'ready') AND workflow_run_id IS NOT NULL
RETURNING id, workflow_run_id, gates IS NOT NULL
"""

# A retry in another queue takes the key along, which stays unique in its old queue as well.
FETCH_BACK = """
UPDATE django_jobs_job_live SET queue = %(queue)s
WHERE id = %(id)s AND idempotency_key = %(key)s
  AND status IN ('waiting', 'scheduled', 'blocked', 'ready')
RETURNING id
"""

RESERVE_FOR = f"""
INSERT INTO django_jobs_uniquekey (queue, key, job_type, job_id, expires_at)
VALUES (%(queue)s, %(key)s, %(job_type)s, %(id)s, {UNTIL})
{IS_RESERVED}
"""


def enqueue_replacing(
    new: NewJobs, payload: dict[str, Any], text: str, key: str, gates: Gates | None = None
) -> Job:
    """Insert one job, or replace the live job that holds ``key`` and return it, marked as
    ``deduplicated``. If that job runs, its key goes to the new one; and if it is a step of a
    workflow, which is cancelled. A job that is to be retried in another queue comes back.

    If the key is still unique for a job that has ended, that job is returned. If a trigger drops
    the new job, the key stays with the job that runs. ``text`` is the payload as JSON.
    """
    values = {**new.parameters, **gate_values(gates), "payload": text, "key": key}
    with transaction.atomic(using=jobs_connection().alias, savepoint=new.is_watched):
        for _ in range(KEY_ATTEMPTS):
            rows = fetch(REPLACE if new.unique_for is None else REPLACE_UNIQUE, values)
            if not rows:
                holder = holder_of(new.queue, key)
                if holder is not None and not holder.is_live:
                    return holder
                if holder is not None:
                    _bring_in_reach(holder, new.queue, key)
            elif rows[0][0] is None:
                _take_key(new, key)
            else:
                return _written(new, payload, key, gates, values, rows[0])
        refusal = not_written(f"the key {key!r} in queue {new.queue!r}")
        if isinstance(refusal, RowsDropped):  # which gives the key back to the job that runs
            raise refusal
    raise refusal


def _bring_in_reach(holder: Job, queue: str, key: str) -> None:
    """Let the next try find ``holder``, for which ``key`` is unique in ``queue``, or no holder if
    it runs or has lost the key to a request without ``unique_for``."""
    if (holder.queue, holder.idempotency_key) == (queue, key):
        return  # another session has made it since
    if holder.status == JobState.RUNNING or holder.idempotency_key != key:
        release(queue, [key])
        return
    with suppress(IntegrityError):  # another session has enqueued one since
        fetch_locking(FETCH_BACK, {"id": holder.pk, "queue": queue, "key": key})


def _take_key(new: NewJobs, key: str) -> None:
    if not fetch_locking(TAKE_FROM_RUNNING, {"queue": new.queue, "key": key}):
        _cancel_step(new.queue, key)
    if new.unique_for is not None:
        release(new.queue, [key])


@repeat_conflicts
def _cancel_step(queue: str, key: str) -> None:
    with transaction.atomic(using=jobs_connection().alias):
        for id_, run, has_gates in fetch(CANCEL_STEP, {"queue": queue, "key": key}):
            follow_cancelled([(id_, run)])
            if has_gates:  # it may have held slots
                notify_after_commit(GATES)


def _written(
    new: NewJobs,
    payload: dict[str, Any],
    key: str,
    gates: Gates | None,
    values: dict[str, Any],
    row: tuple[Any, ...],
) -> Job:
    connection = jobs_connection()
    *returned, is_replaced, reserved = row
    if new.unique_for is not None:
        # Since the statement began, a request without unique_for took the key, or the live job
        # ended.
        if is_replaced and reserved is not None:
            release(new.queue, [key])
        elif not is_replaced and reserved is None:
            execute(RESERVE_FOR, {**values, "id": returned[0]})
    notify_after_commit(new.queue, connection)
    if not is_replaced:
        return as_job(connection, new, payload, key, gates, tuple(returned))
    job = Job.objects.using(conf().database).get(pk=returned[0])
    job.deduplicated = True
    return job
