"""Insert many new jobs by COPY, the fastest way. Has no ON CONFLICT: keys have to be free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models.database import fetch, jobs_connection
from .job_columns import COMMON_COLUMNS, DUE, NOW, NewJobs, listed, timing

# An id for each row, because COPY returns none, and the values of a due time, which all rows have
# in common, as text.
TIMING = timing("now", "at")
ALLOCATE = f"""
WITH due AS MATERIALIZED (
    SELECT {NOW} AS now, {DUE} AS at
), ids AS MATERIALIZED (
    SELECT pg_get_serial_sequence('django_jobs_job', 'id')::regclass AS sequence
)
SELECT ARRAY(SELECT nextval(ids.sequence) FROM generate_series(1, %(count)s)),
    {listed(f"({expression})::text" for expression in TIMING.values())}
FROM due, ids
"""

COPY = f"""
COPY django_jobs_job_live (
    {listed(("id", "idempotency_key", "payload", *COMMON_COLUMNS, *TIMING))}) FROM STDIN
"""

ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""The characters that COPY's text format reserves. JSON as we write it contains only the backslash
of these."""
BACKSLASH, ESCAPED = "\\", "\\\\"


def copy_in(
    new: NewJobs, payloads: Sequence[str], keys: Sequence[str | None] | None = None
) -> list[int]:
    """Insert a job for each payload (JSON text); return their ids in order. Takes two round trips.

    Rows are written in the order of their ``keys``, so that two requests for the same keys do not
    wait for each other. Raises ``IntegrityError`` if a live job holds one of them.
    """
    ((ids, *values),) = fetch(ALLOCATE, {**new.parameters, "count": len(payloads)})
    rest = "\t".join(_field(value) for value in (*new.columns.values(), *values))
    if keys is None:
        lines = [
            f"{id_}\t\\N\t{payload.replace(BACKSLASH, ESCAPED)}\t{rest}\n"
            for id_, payload in zip(ids, payloads, strict=True)
        ]
    else:
        rows = zip(keys, ids, payloads, strict=True)
        lines = [
            f"{id_}\t{_field(key)}\t{payload.replace(BACKSLASH, ESCAPED)}\t{rest}\n"
            for key, id_, payload in sorted(rows, key=lambda row: (row[0] is None, row[0] or ""))
        ]
    connection = jobs_connection()
    # Django wraps the errors of execute() and not those of copy().
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.copy(COPY) as copy:
        copy.write("".join(lines))
    return list(ids)


def _field(value: Any) -> str:
    return "\\N" if value is None else str(value).translate(ESCAPES)
