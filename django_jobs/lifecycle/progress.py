"""How far running jobs have come, and where their next attempt may begin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..domain.errors import clean
from ..models.database import fetch
from .claiming import ClaimedJob

LONGEST_NOTE = 200

# A report is written while its attempt is the job's, and never over one of a later attempt: that
# could come between the look at the job and the write. The job's row is not locked: in a handler's
# transaction that would block whoever cancels. What a report does not speak of is kept.
# LATERAL ... LIMIT finds each job by its primary key; of a table of some ten thousand rows the
# planner would read all for a join.
REPORT = """
INSERT INTO django_jobs_progress AS progress (
    job_id, attempt, fraction, note, checkpoint, reported_at)
SELECT job.id, job.attempt, input.fraction, coalesce(input.note, ''), input.checkpoint::jsonb,
    clock_timestamp()
FROM json_to_recordset(%(rows)s::json) AS input (
    id bigint, attempt integer, worker bigint, fraction float8, note text, checkpoint text)
CROSS JOIN LATERAL (
    SELECT found.id, found.attempt FROM django_jobs_job AS found
    WHERE found.id = input.id AND found.attempt = input.attempt AND found.worker_id = input.worker
    LIMIT 1) AS job
ORDER BY job.id
ON CONFLICT (job_id) DO UPDATE
SET attempt = EXCLUDED.attempt, reported_at = EXCLUDED.reported_at,
    fraction = coalesce(EXCLUDED.fraction, progress.fraction),
    note = CASE WHEN EXCLUDED.fraction IS NULL THEN progress.note ELSE EXCLUDED.note END,
    checkpoint = coalesce(EXCLUDED.checkpoint, progress.checkpoint)
WHERE progress.attempt <= EXCLUDED.attempt
RETURNING progress.job_id, progress.attempt
"""

# Reads by writing. An attempt before may have a checkpoint in a transaction that is still open, its
# worker being cut off: the end of that is waited for, or its rows would be done twice. From here on
# what that attempt has to say is refused.
TAKE_OVER = """
UPDATE django_jobs_progress SET attempt = %(attempt)s
WHERE job_id = %(id)s AND attempt <= %(attempt)s
RETURNING checkpoint
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """What an attempt says of itself. ``checkpoint`` is JSON text; None is nothing new of it.
    ``note`` goes with ``fraction``."""

    job: ClaimedJob
    fraction: float | None = None
    note: str = ""
    checkpoint: str | None = None


def report(reports: Sequence[ProgressReport]) -> set[tuple[int, int]]:
    """Write the reports in one statement; returns (job, attempt) of those that were written.

    An attempt that is not among them is no longer its worker's.
    """
    return set(fetch(REPORT, {"rows": json.dumps([_row(one) for one in reports])}))


def take_over(job: ClaimedJob) -> tuple[bool, str | None]:
    """Whether the attempts before have left anything, and their checkpoint as JSON text.

    Waits for a transaction of theirs that holds one.
    """
    rows = fetch(TAKE_OVER, {"id": job.id, "attempt": job.attempt})
    return (True, rows[0][0]) if rows else (False, None)


def _row(one: ProgressReport) -> dict[str, Any]:
    """What stands in the statement's JSON. What is left out is null there."""
    job = one.job
    row: dict[str, Any] = {"id": job.id, "attempt": job.attempt, "worker": job.worker}
    if one.fraction is not None:
        note = clean(one.note[: LONGEST_NOTE + 1])
        row["fraction"] = one.fraction
        row["note"] = note if len(note) <= LONGEST_NOTE else note[: LONGEST_NOTE - 1] + "…"
    if one.checkpoint is not None:
        row["checkpoint"] = one.checkpoint
    return row
