"""Insert jobs whose idempotency key stays unique for a time, also when they have ended.

A row of ``django_jobs_uniquekey`` reserves the key. It is written with its job, in one statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import transaction

from ..conf import conf
from ..domain.gates import Gates
from ..models import Job
from ..models.database import execute, fetch, jobs_connection
from .bulk_insert import Item, insert, not_written
from .enqueueing import (
    ARRAYS_GATED,
    GATED,
    KEY_ATTEMPTS,
    KEYED_GATED,
    LIVE,
    RETURNED,
    UNLESS_HELD,
    KeyRule,
    array_parameters,
    as_job,
    items_of,
)
from .job_columns import DUE, NOW, NewJobs, gate_values, text_array, timing
from .notifying import notify_after_commit

UNTIL = f"{NOW} + make_interval(secs => %(unique_for)s::float8)"
IS_RESERVED = """ON CONFLICT (queue, key) DO UPDATE
    SET job_type = excluded.job_type, job_id = excluded.job_id, expires_at = excluded.expires_at"""
UNLESS_UNIQUE = f"""{IS_RESERVED}
    WHERE known.expires_at <= {NOW}"""

# For jobs with gates and without.
RESERVED = {
    "id": "reserved.job_id",
    **GATED,
    **timing(NOW, DUE, "CASE WHEN %(gates)s::text IS NULL THEN 'ready' ELSE 'blocked' END"),
}
NEXT_ID = "nextval(pg_get_serial_sequence('django_jobs_job', 'id')::regclass)"
HELD_BY_LIVE = f"""EXISTS (
        SELECT 1 FROM django_jobs_job_live
        WHERE queue = %(queue)s AND idempotency_key = %(key)s AND {LIVE})"""

# A key that a live job holds is not reserved. If a request without unique_for takes the key at the
# same moment, the job is not made, and the reservation is released.
RESERVE = f"""reserved AS (
    INSERT INTO django_jobs_uniquekey AS known (queue, key, job_type, job_id, expires_at)
    SELECT %(queue)s::varchar, %(key)s::varchar, %(job_type)s::varchar, {NEXT_ID}, {UNTIL}
    WHERE NOT {HELD_BY_LIVE}
    {UNLESS_UNIQUE}
    RETURNING job_id
)"""
ENQUEUE_UNIQUE = f"""
WITH {RESERVE}, made AS (
    {insert(RESERVED, "FROM reserved")}
    {UNLESS_HELD}
    RETURNING {", ".join(f"{value} AS {name}" for name, value in RETURNED.items())}
)
SELECT made.* FROM reserved LEFT JOIN made ON true
"""

# As ENQUEUE_KEYED_GATED. Both tables are written in the order of the keys. Of payloads with the
# same key the first one is enqueued.
ENQUEUE_MANY_UNIQUE = f"""{items_of(ARRAYS_GATED)}, live AS MATERIALIZED (
    SELECT idempotency_key FROM django_jobs_job_live
    WHERE queue = %(queue)s AND idempotency_key = ANY(%(keys)s::text[]) AND {LIVE}
), reserved AS (
    INSERT INTO django_jobs_uniquekey AS known (queue, key, job_type, job_id, expires_at)
    SELECT %(queue)s, item.key, %(job_type)s, min(item.id), {UNTIL}
    FROM item
    WHERE item.key IS NOT NULL AND item.key NOT IN (SELECT idempotency_key FROM live)
    GROUP BY item.key
    ORDER BY item.key COLLATE "C"
    {UNLESS_UNIQUE}
    RETURNING key, job_id
), made AS (
    {insert(KEYED_GATED, "FROM due, item")}
    WHERE item.key IS NULL OR item.id IN (SELECT job_id FROM reserved)
    ORDER BY item.key COLLATE "C", item.id
    {UNLESS_HELD}
    RETURNING id, idempotency_key
)
SELECT id, idempotency_key FROM made
UNION ALL
SELECT NULL, key FROM reserved WHERE job_id NOT IN (SELECT id FROM made)
"""

RELEASE = """
DELETE FROM django_jobs_uniquekey
WHERE queue = %(queue)s AND key = ANY(%(keys)s::text[])
"""

HOLDERS = f"""
SELECT key, job_id, job_type, false AS is_live FROM django_jobs_uniquekey
WHERE queue = %(queue)s AND key = ANY(%(keys)s::text[]) AND expires_at > {NOW}
UNION ALL
SELECT idempotency_key, id, job_type, true FROM django_jobs_job_live
WHERE queue = %(queue)s AND idempotency_key = ANY(%(keys)s::text[]) AND {LIVE}
ORDER BY is_live
"""


def enqueue_unique(
    new: NewJobs, payload: dict[str, Any], text: str, key: str, gates: Gates | None = None
) -> Job:
    """Insert one job, or return the one that holds ``key``, marked as ``deduplicated``: the live
    one, or the one for which the key is still unique. ``text`` is the payload as JSON."""
    for _ in range(KEY_ATTEMPTS):
        job = _insert_one(new, payload, text, key, gates) or holder_of(new.queue, key)
        if job is not None:
            return job
    raise not_written(f"the key {key!r} in queue {new.queue!r}")


def _insert_one(
    new: NewJobs, payload: dict[str, Any], text: str, key: str, gates: Gates | None
) -> Job | None:
    connection = jobs_connection()
    parameters = {**new.parameters, **gate_values(gates), "payload": text, "key": key}
    with transaction.atomic(using=connection.alias, savepoint=False):
        rows = fetch(ENQUEUE_UNIQUE, parameters)
        if rows and rows[0][0] is None:
            release(new.queue, [key])
        elif rows:
            notify_after_commit(new.queue, connection)
            return as_job(connection, new, payload, key, gates, rows[0])
    return None


def holder_of(queue: str, key: str) -> Job | None:
    """The job that holds ``key``, marked as ``deduplicated``; if deleted, what is known of it."""
    holders = fetch(HOLDERS, {"queue": queue, "keys": text_array([key])})
    if not holders:
        return None
    _, id_, job_type, _ = holders[-1]  # a live job comes before one that has ended
    alias = conf().database
    job = Job.objects.using(alias).filter(pk=id_).first()
    if job is None:
        known = {"id": id_, "queue": queue, "job_type": job_type, "status": ""}
        job = Job.from_db(alias, [*known, "idempotency_key"], [*known.values(), key])
    job.deduplicated = True
    return job


def _insert_many(new: NewJobs, batch: Sequence[Item]) -> list[tuple[Any, ...]]:
    parameters = array_parameters(new, batch, gated=True)
    with transaction.atomic(using=jobs_connection().alias, savepoint=False):
        rows = fetch(ENQUEUE_MANY_UNIQUE, parameters)
        if unmade := [key for id_, key in rows if id_ is None]:
            release(new.queue, unmade)
    return [row for row in rows if row[0] is not None]


def release(queue: str, keys: Sequence[str]) -> None:
    """Let these keys be unique no longer."""
    execute(RELEASE, {"queue": queue, "keys": text_array(keys)})


def _holders(queue: str, keys: Sequence[str]) -> Iterable[tuple[str, int]]:
    rows = fetch(HOLDERS, {"queue": queue, "keys": text_array(keys)})
    return ((key, id_) for key, id_, _, _ in rows)


UNIQUE_KEYS = KeyRule(_insert_many, _holders)
"""Live jobs hold their keys, and so do jobs that have ended while their keys are unique."""
