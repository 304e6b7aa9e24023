"""Settle row by row if a batch is refused, so that one bad row does not hold up the others.

Rows that this package did not write may hold values that no statement can carry, such as an
infinite due time or a counter at its maximum. And a trigger of the project's may refuse a row.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain

from django.db import transaction

from ..domain.decisions import Decision
from ..domain.errors import ErrorReport
from ..domain.outcomes import Lost
from ..domain.states import JobState, RunState
from ..logs import log_event
from ..models.database import ROW_ERRORS, fetch, is_of_a_row, jobs_connection, repeat_conflicts
from .bulk_insert import rows_dropped
from .claiming import claimed_by
from .job_columns import Fence
from .notifying import notify_after_commit
from .opening import open_next
from .settling import Ending, HandOver, Settled, ended_steps, give_back, settle

# Reads no more of the row than it needs, and repairs the times that Python cannot read.
END_UNSETTLEABLE = """
WITH ended AS (
    UPDATE django_jobs_job_live AS job
    SET status = 'dead', worker_id = NULL, finished_at = clock.now, started_at = NULL,
        result = NULL, last_error = %(summary)s, reason = %(reason)s,
        fingerprint = %(fingerprint)s,
        available_at = CASE WHEN isfinite(job.available_at) THEN job.available_at
                            ELSE clock.now END,
        claimed_at = CASE WHEN isfinite(job.claimed_at) THEN job.claimed_at ELSE clock.now END,
        expires_at = CASE WHEN isfinite(job.expires_at) THEN job.expires_at END,
        retry_until = NULL
    FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
    WHERE job.id = %(id)s AND job.attempt = %(attempt)s AND job.worker_id = %(worker)s
    RETURNING job.id, job.attempt, job.available_at, job.claimed_at, job.finished_at
), written AS (
    INSERT INTO django_jobs_run (
        job_id, attempt, outcome, worker_id, available_at, claimed_at, finished_at,
        error_type, error_code, error_message, traceback, fingerprint)
    SELECT id, attempt, %(outcome)s, %(worker)s, available_at, claimed_at, finished_at,
        %(type)s, %(code)s, %(reason)s, '', %(fingerprint)s
    FROM ended
    WHERE NOT EXISTS (
        SELECT 1 FROM django_jobs_run AS run
        WHERE run.job_id = ended.id AND run.attempt = ended.attempt)
)
SELECT id FROM ended
"""

# Its own locks are released at once. It runs only when a batch of settles was cut short.
LOCKED_BY_OTHERS = """
WITH free AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live WHERE id = ANY(%(ids)s::bigint[])
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM django_jobs_job_live
WHERE id = ANY(%(ids)s::bigint[]) AND id NOT IN (SELECT id FROM free)
"""

# A settle that moves a job deletes it here and inserts it there, where a trigger may return NULL.
DROPPING_ENDS = """
SELECT tgrelid::regclass::text FROM pg_trigger
WHERE tgtype & 7 = 7 AND tgenabled <> 'D' AND EXISTS (
    SELECT FROM (VALUES (to_regclass('django_jobs_job_history')), (to_regclass('django_jobs_run')))
        AS whole (id)
    WHERE tgrelid = whole.id
       OR tgrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = whole.id))
ORDER BY 1 LIMIT 1
"""

LIMIT_LOCKS = "SELECT set_config('lock_timeout', %(milliseconds)s, true)"


_drops_ends = False


def note_triggers() -> str | None:
    """Read whether a trigger of the project's may drop what a settle inserts: the name of a table
    that has one. While there is one, :func:`settle_with_fallback` can undo what it dropped."""
    global _drops_ends
    rows = fetch(DROPPING_ENDS, {})
    _drops_ends = bool(rows)
    return rows[0][0] if rows else None


def settle_row_by_row(
    endings: Sequence[Ending], hand_over: HandOver | None = None
) -> list[Settled]:
    """Settle a batch; if PostgreSQL or a trigger rejects a row, settle each ending alone.

    A job whose ending is rejected even so ends dead with the reason. If that is rejected as well,
    the job is logged and left out of the result.
    """
    alias = jobs_connection().alias
    try:
        with transaction.atomic(using=alias):
            settled = settle(endings, hand_over=hand_over)
            if (lost := [one for one in settled if one.decision is None]) and (
                table := note_triggers()
            ):
                raise rows_dropped(len(lost), table)  # or they are no longer ours, as turns out
            return settled
    except ROW_ERRORS as refusal:
        if not is_of_a_row(refusal):
            raise
        if len(endings) > 1:
            alone = [settle_row_by_row([ending], hand_over) for ending in endings]
            return list(chain.from_iterable(alone))
        (ending,) = endings
        error = refusal
    if ending.log is not None:  # in a database that is not UTF8, for example
        ending.log = None
        return settle_row_by_row([ending], hand_over)
    if ending.stay("it was refused there"):  # such as for its key, which another job has taken
        return settle_row_by_row([ending])
    try:
        return [_end_unsettleable(ending, error)]
    except ROW_ERRORS as second:
        if not is_of_a_row(second):
            raise
        _log("unsettleable", logging.ERROR, ending.job.id, ending.job.attempt, second)
        return []


def give_back_unlocked(fences: Collection[Fence]) -> set[Fence]:
    """Give back jobs without waiting for locks. Return the fences of those that are still their
    worker's, because another session has locked their rows. A job that is rejected is left out."""
    given_back, rejected = give_back_row_by_row(fences)
    done = set(given_back + rejected)
    left = {(id_, attempt, worker) for id_, attempt, worker in fences if id_ not in done}
    ids = [id_ for id_, _, _ in left]
    workers = {worker for _, _, worker in left}
    return left & {job.fence for worker in workers for job in claimed_by(worker, ids)}


def locked_by_others(ids: Sequence[int]) -> set[int]:
    """The ids of those of these jobs whose rows another session has locked. Waits for no lock."""
    return {id_ for (id_,) in fetch(LOCKED_BY_OTHERS, {"ids": list(ids)})}


def give_back_row_by_row(fences: Collection[Fence]) -> tuple[list[int], list[int]]:
    """Give back a batch; if PostgreSQL or a trigger rejects a row, give back each job alone. A job
    that is rejected alone is logged and stays as it is. Return the ids of the jobs given back, and
    of those that were rejected."""
    try:
        return give_back(fences), []
    except ROW_ERRORS as refusal:
        if not is_of_a_row(refusal):
            raise
        if len(fences) > 1:
            alone = [give_back_row_by_row([fence]) for fence in fences]
            given_back, rejected = zip(*alone, strict=True)
            return [*chain.from_iterable(given_back)], [*chain.from_iterable(rejected)]
        ((id_, attempt, _),) = fences
        _log("not_given_back", logging.WARNING, id_, attempt, refusal)
        return [], [id_]


def _log(event: str, level: int, job: int, attempt: int, error: Exception) -> None:
    fields = {"job_id": job, "attempt": attempt, "error": ErrorReport.of(error).summary}
    log_event(event, level, fields)


@repeat_conflicts
def _end_unsettleable(ending: Ending, refusal: Exception) -> Settled:
    job, error = ending.job, ErrorReport.of(refusal)
    # The first line only: the others quote the whole row.
    reason = f"its end could not be written: {error.summary}"
    decision = Decision(
        status=JobState.DEAD,
        run=RunState.LOST if isinstance(ending.outcome, Lost) else RunState.FAILED,
        failures=job.failures,
        crashes=job.crashes,
        reason=reason,
        error=replace(error, message=reason, traceback=""),
    )
    parameters = {
        "id": job.id,
        "attempt": job.attempt,
        "worker": job.worker,
        "outcome": decision.run.value,
        "reason": reason,
        "summary": error.summary,
        "type": error.type,
        "code": error.code,
        "fingerprint": error.fingerprint,
    }
    with transaction.atomic(using=jobs_connection().alias):
        rows = fetch(END_UNSETTLEABLE, parameters)
        settled = Settled(ending, decision if rows else None)
        for hint in open_next(ended_steps([settled])).hints:
            notify_after_commit(hint)
    return settled


def settle_with_fallback(
    endings: Sequence[Ending], hand_over: HandOver | None = None, lock_seconds: float | None = None
) -> list[Settled]:
    """Settle a batch in one statement. If PostgreSQL or a trigger rejects a row, settle row by row
    so that only the offending job is reported. With ``lock_seconds``, a longer wait for a lock
    raises the error of a lock, which takes a transaction."""
    if lock_seconds is not None:
        return _settle_unless_locked(endings, hand_over, lock_seconds)
    if _drops_ends and note_triggers():
        return settle_row_by_row(endings, hand_over)
    try:
        settled = settle(endings, hand_over=hand_over)
    except ROW_ERRORS as refusal:
        if not is_of_a_row(refusal):
            raise
        return settle_row_by_row(endings, hand_over)
    lost = [one.ending.job for one in settled if one.decision is None]
    if lost and (table := note_triggers()):  # which was not there before
        for job in lost:
            _log("unsettleable", logging.ERROR, job.id, job.attempt, rows_dropped(1, table))
    return settled


@repeat_conflicts
def _settle_unless_locked(
    endings: Sequence[Ending], hand_over: HandOver | None, seconds: float
) -> list[Settled]:
    with transaction.atomic(using=jobs_connection().alias):
        fetch(LIMIT_LOCKS, {"milliseconds": f"{1000 * seconds:.0f}"})
        return settle_row_by_row(endings, hand_over)
