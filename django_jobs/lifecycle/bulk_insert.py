"""Insert many new jobs by COPY, the fastest way. For jobs without idempotency keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models.database import fetch, jobs_connection

# The values that all rows of a COPY have in common, as text, and an id for each row, because COPY
# returns none.
ALLOCATE = """
WITH due AS MATERIALIZED (
    SELECT statement_timestamp() AS now,
           coalesce(%(run_at)s::timestamptz, statement_timestamp()
                    + make_interval(secs => %(delay)s::float8)) AS at
), ids AS MATERIALIZED (
    SELECT pg_get_serial_sequence('django_jobs_job', 'id')::regclass AS sequence
)
SELECT CASE WHEN at > now THEN 'scheduled' ELSE 'ready' END,
    (date_part('epoch', at) - %(priority)s * %(weight)s::float8)::text,
    at::text, now::text, (now + make_interval(secs => %(max_age)s::float8))::text,
    ARRAY(SELECT nextval(ids.sequence) FROM generate_series(1, %(count)s))
FROM due, ids
"""

COPY = """
COPY django_jobs_job (
    id, payload, queue, job_type, payload_version, status, priority, rank, available_at,
    attempt, failures, crashes, max_attempts, max_crashes, backoff, timeout, at_most_once,
    expires_at, last_error, reason, replays, headers, created_at) FROM STDIN
"""

ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""The characters that COPY's text format reserves. JSON as we write it contains only the backslash
of these."""


def copy_in(common: dict[str, Any], payloads: Sequence[str]) -> list[int]:
    """Insert a job for each payload (JSON text); return their ids in order.

    ``common`` are the parameters that :mod:`.enqueueing` passes to its other statements. Takes two
    round trips.
    """
    ((status, rank, due, now, expires, ids),) = fetch(ALLOCATE, {**common, "count": len(payloads)})
    values = (
        common["queue"],
        common["job_type"],
        common["payload_version"],
        status,
        common["priority"],
        rank,
        due,
        *(0, 0, 0),
        common["max_attempts"],
        common["max_crashes"],
        common["backoff"],
        common["timeout"],
        common["at_most_once"],
        expires,
        *("", "", 0),
        common["headers"],
        now,
    )
    rest = "\t".join(_field(value) for value in values)
    lines = [
        f"{id_}\t{payload.replace(BACKSLASH, ESCAPED)}\t{rest}\n"
        for id_, payload in zip(ids, payloads, strict=True)
    ]
    connection = jobs_connection()
    # Django wraps the errors of execute() and not those of copy().
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.copy(COPY) as copy:
        copy.write("".join(lines))
    return list(ids)


BACKSLASH, ESCAPED = "\\", "\\\\"


def _field(value: Any) -> str:
    return "\\N" if value is None else str(value).translate(ESCAPES)
