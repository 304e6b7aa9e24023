"""What running jobs report and are asked: progress, checkpoints where the next attempts begin,
answers of outside calls that are made once, questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..domain.errors import clean
from ..models.database import execute, fetch
from .claiming import lease_lost
from .job_columns import ClaimedJob

LONGEST_NOTE = 200

# Writes a report only while its attempt owns the job, and never over one of a later attempt, which
# may come between the look at the job and the write. Does not lock the job's row: in a handler's
# transaction that would block a cancel. What a report leaves out keeps its stored value. The
# LATERAL subquery with its LIMIT finds each job by its primary key; for a join the planner would
# read all of a table of some ten thousand rows.
REPORT = """
INSERT INTO django_jobs_progress AS progress (
    job_id, attempt, fraction, note, checkpoint, reported_at)
SELECT job.id, job.attempt, input.fraction, coalesce(input.note, ''), input.checkpoint::jsonb,
    clock_timestamp()
FROM json_to_recordset(%(rows)s::json) AS input (
    id bigint, attempt integer, worker bigint, fraction float8, note text, checkpoint text)
CROSS JOIN LATERAL (
    SELECT found.id, found.attempt FROM django_jobs_job_live AS found
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

# Reads by writing. The worker of an earlier attempt may be cut off and hold a checkpoint in a
# transaction that is still open. This statement waits for its end; otherwise the rows of that
# transaction would be processed twice. Reports of earlier attempts are refused from here on.
TAKE_OVER = """
UPDATE django_jobs_progress SET attempt = %(attempt)s
WHERE job_id = %(id)s AND attempt <= %(attempt)s
RETURNING checkpoint
"""

# By who does not run the job, so without a fence. One that is no object is a handler's own.
ADD_TO_CHECKPOINT = """
INSERT INTO django_jobs_progress AS progress (job_id, attempt, note, checkpoint, reported_at)
SELECT id, attempt, '', %(values)s::jsonb, clock_timestamp() FROM django_jobs_job
WHERE id = %(id)s
ON CONFLICT (job_id) DO UPDATE
SET checkpoint = coalesce(progress.checkpoint, '{}') || EXCLUDED.checkpoint
WHERE progress.checkpoint IS NULL OR jsonb_typeof(progress.checkpoint) = 'object'
RETURNING job_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """What an attempt reports. ``fraction`` is from 0 to 1, and ``note`` belongs to it.
    ``checkpoint`` is JSON text. None keeps what is stored."""

    job: ClaimedJob
    fraction: float | None = None
    note: str = ""
    checkpoint: str | None = None


def report(reports: Sequence[ProgressReport]) -> set[tuple[int, int]]:
    """Write the reports in one statement; return ``(job, attempt)`` of those written.

    An attempt that is missing from the result no longer owns its job.
    """
    return set(fetch(REPORT, {"rows": json.dumps([_row(progress) for progress in reports])}))


def take_over(job: ClaimedJob) -> tuple[bool, str | None]:
    """Return whether earlier attempts reported anything, and their checkpoint as JSON text or None.
    Their later reports are refused.

    Waits for an open transaction of theirs that wrote one.
    """
    rows = fetch(TAKE_OVER, {"id": job.id, "attempt": job.attempt})
    return (True, rows[0][0]) if rows else (False, None)


def add_to_checkpoint(job_id: int, values: dict[str, Any]) -> bool:
    """Write these values into the checkpoint of a job, beside others of its; False if there is no
    such job, or its checkpoint is no object."""
    return bool(fetch(ADD_TO_CHECKPOINT, {"id": job_id, "values": json.dumps(values)}))


def _row(report: ProgressReport) -> dict[str, Any]:
    """One row of the statement's JSON. Keys that are left out are null there."""
    job = report.job
    row: dict[str, Any] = {"id": job.id, "attempt": job.attempt, "worker": job.worker}
    if report.fraction is not None:
        note = clean(report.note[: LONGEST_NOTE + 1])
        row["fraction"] = report.fraction
        row["note"] = note if len(note) <= LONGEST_NOTE else note[: LONGEST_NOTE - 1] + "…"
    if report.checkpoint is not None:
        row["checkpoint"] = report.checkpoint
    return row


OURS = """SELECT id FROM django_jobs_job_live
    WHERE id = %(id)s AND attempt = %(attempt)s AND worker_id = %(worker)s"""

# Fenced, so that an attempt that lost its lease makes no further call.
LOOK_UP = f"""
WITH ours AS MATERIALIZED (
    {OURS}
), answered AS (
    UPDATE django_jobs_receipt SET prevented = prevented + 1
    WHERE job_id = (SELECT id FROM ours) AND key = %(key)s
    RETURNING answer, attempt
)
SELECT EXISTS (SELECT 1 FROM ours), (SELECT answer FROM answered), (SELECT attempt FROM answered)
"""

# Not fenced: the call has been made, and the attempt that owns the job by now has to know its
# answer. The first receipt stays.
STORE = """
INSERT INTO django_jobs_receipt (job_id, key, attempt, answer, made_at, prevented)
VALUES (%(id)s, %(key)s, %(attempt)s, %(answer)s::jsonb, clock_timestamp(), %(prevented)s)
ON CONFLICT (job_id, key) DO NOTHING
"""
STORED = """
SELECT answer FROM django_jobs_receipt WHERE job_id = %(id)s AND key = %(key)s
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a call as JSON text, and the attempt that made the call. ``job`` is None for
    the job that asks."""

    text: str
    attempt: int
    job: int | None = None


def look_up(job: ClaimedJob, key: str) -> Answer | None:
    """Return the answer that an earlier call under ``key`` got, and count a prevented duplicate;
    None if there is no answer. Raises :class:`LeaseLost` if the job is no longer its worker's."""
    parameters = {"id": job.id, "attempt": job.attempt, "worker": job.worker, "key": key}
    ((ours, text, attempt),) = fetch(LOOK_UP, parameters)
    if not ours:
        raise lease_lost(job)
    return None if attempt is None else Answer(text or "null", attempt)


def store(job: ClaimedJob, key: str, answer: str, prevented: int = 0) -> str:
    """Store ``answer`` (JSON text) under ``key``. Return what is stored, which is another attempt's
    answer if that was stored first."""
    parameters = {"id": job.id, "attempt": job.attempt, "key": key, "answer": answer}
    execute(STORE, {**parameters, "prevented": prevented})
    kept = fetch(STORED, parameters)
    return str(kept[0][0]) if kept else answer


HOLDER_RUNS = """EXISTS (
    SELECT FROM django_jobs_job_live AS holder
    WHERE holder.id = effect.job_id AND holder.attempt = effect.attempt
      AND holder.status = 'running')"""
"""Whether the attempt still runs that makes the call of an effect."""

# Fenced as the look-up of a receipt is. Committed before the call.
HOLD = f"""
WITH ours AS MATERIALIZED (
    {OURS}
), held AS (
    INSERT INTO django_jobs_effect AS effect (key, job_id, attempt, expires_at)
    SELECT %(key)s, id, %(attempt)s, clock_timestamp() + make_interval(secs => %(keep)s) FROM ours
    ON CONFLICT (key) DO UPDATE
    SET prevented = effect.prevented
        + (effect.made_at IS NOT NULL AND effect.expires_at > clock_timestamp())::integer
    RETURNING job_id, attempt, answer,
        made_at IS NOT NULL AND expires_at > clock_timestamp() AS is_answered
)
SELECT EXISTS (SELECT 1 FROM ours), job_id, held.attempt, is_answered, answer
FROM (VALUES (1)) AS one LEFT JOIN held ON true
"""

# After HOLD, because its snapshot may be older than the claim of the holder that it found.
TAKE_EFFECT = f"""
UPDATE django_jobs_effect AS effect
SET job_id = %(id)s, attempt = %(attempt)s, answer = NULL, made_at = NULL, prevented = 0,
    expires_at = clock_timestamp() + make_interval(secs => %(keep)s)
WHERE key = %(key)s AND job_id = %(holder)s AND attempt = %(held)s AND EXISTS ({OURS})
  AND CASE WHEN made_at IS NULL THEN NOT {HOLDER_RUNS} ELSE expires_at <= clock_timestamp() END
RETURNING id
"""

# Not fenced, as the receipt is not. The first answer stays.
STORE_EFFECT = """
INSERT INTO django_jobs_effect AS effect (key, job_id, attempt, answer, made_at, expires_at)
VALUES (%(key)s, %(id)s, %(attempt)s, %(answer)s::jsonb, clock_timestamp(),
    clock_timestamp() + make_interval(secs => %(keep)s))
ON CONFLICT (key) DO UPDATE
SET job_id = EXCLUDED.job_id, attempt = EXCLUDED.attempt, answer = EXCLUDED.answer,
    made_at = EXCLUDED.made_at, expires_at = EXCLUDED.expires_at
WHERE effect.made_at IS NULL OR effect.expires_at <= clock_timestamp()
"""
STORED_EFFECT = """
SELECT answer FROM django_jobs_effect WHERE key = %(key)s AND made_at IS NOT NULL
"""

FREE_EFFECT = """
DELETE FROM django_jobs_effect
WHERE key = %(key)s AND job_id = %(id)s AND attempt = %(attempt)s AND made_at IS NULL
"""


# One whose call takes longer than it is kept stays until that has ended.
PRUNE_EFFECTS = f"""
DELETE FROM django_jobs_effect WHERE id = ANY(ARRAY(
    SELECT id FROM django_jobs_effect AS effect
    WHERE expires_at <= statement_timestamp() AND (made_at IS NOT NULL OR NOT {HOLDER_RUNS})
    ORDER BY expires_at
    LIMIT %(page)s
    FOR UPDATE SKIP LOCKED))
"""


class EffectBusy(Exception):
    """Another attempt, which runs, makes the call of the effect."""


def hold(job: ClaimedJob, key: str, keep: float) -> Answer | None:
    """Return the answer of the effect ``key``, and count one more duplicate as prevented. None if
    there is none: this attempt is then the one that makes the call. ``keep`` is in seconds.

    Raises :class:`EffectBusy`, and :class:`LeaseLost` if the job is no longer its worker's.
    """
    parameters = {**_of_effect(job, key, keep), "worker": job.worker}
    ((ours, holder, attempt, is_answered, text),) = fetch(HOLD, parameters)
    if not ours:
        raise lease_lost(job)
    if is_answered:
        return Answer(text or "null", attempt, holder)
    if (holder, attempt) != (job.id, job.attempt) and not fetch(
        TAKE_EFFECT, {**parameters, "holder": holder, "held": attempt}
    ):
        raise EffectBusy
    return None


def store_effect(job: ClaimedJob, key: str, keep: float, answer: str) -> str:
    """As :func:`store`, for all jobs and for ``keep`` seconds."""
    parameters = {**_of_effect(job, key, keep), "answer": answer}
    execute(STORE_EFFECT, parameters)
    kept = fetch(STORED_EFFECT, parameters)
    return str(kept[0][0]) if kept else answer


def free_effect(job: ClaimedJob, key: str) -> None:
    """Let any attempt make the call, if this one has no answer."""
    execute(FREE_EFFECT, _of_effect(job, key, 0.0))


def _of_effect(job: ClaimedJob, key: str, keep: float) -> dict[str, Any]:
    return {"id": job.id, "attempt": job.attempt, "key": key, "keep": keep}


# The table stays small without a maintenance task.
ASK = """
WITH gone AS (
    DELETE FROM django_jobs_inspection WHERE asked_at < clock_timestamp() - interval '1 hour'
)
INSERT INTO django_jobs_inspection (
    job_id, attempt, worker_id, asked_by, asked_at, thread, stack)
SELECT job.id, job.attempt, job.worker_id, %(by)s, clock_timestamp(), '', ''
FROM django_jobs_job_live AS job
WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'running'
RETURNING id, job_id
"""

# After a minute nobody waits for the answer any more.
UNANSWERED = """FROM django_jobs_inspection
WHERE answered_at IS NULL AND asked_at > clock_timestamp() - interval '1 minute'"""
ASKED = f"""
SELECT id, job_id, attempt, worker_id {UNANSWERED}
  AND worker_id = ANY(%(workers)s::bigint[])
ORDER BY id
"""

ANSWER = """
UPDATE django_jobs_inspection SET answered_at = clock_timestamp(), process = %(process)s,
    thread = %(thread)s, ran_seconds = %(ran_seconds)s, stack = %(stack)s
WHERE id = %(id)s AND answered_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Question:
    """An unanswered question about an attempt of a worker."""

    id: int
    job: int
    attempt: int
    worker: int


def ask(ids: Sequence[int], by: str) -> dict[int, int]:
    """Ask what these jobs are doing. Returns the ids of the questions, by running job."""
    return {job: id_ for id_, job in fetch(ASK, {"ids": list(ids), "by": by[:200]})}


def asked(workers: Sequence[int]) -> list[Question]:
    return [Question(*row) for row in fetch(ASKED, {"workers": list(workers)})]


def record(question: Question, *, process: int, thread: str, ran: float, stack: str) -> None:
    """Record the answer to a question, unless it has one."""
    texts = {"thread": clean(thread)[:200], "stack": clean(stack)}
    execute(ANSWER, {"id": question.id, "process": process, "ran_seconds": ran, **texts})
