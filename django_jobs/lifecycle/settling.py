"""running -> what follows.

Each ending is fenced and leaves a run. A job that never started is given back without one.
:mod:`.settling_rows` ends a job as dead if these statements cannot write its ending.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..domain.decisions import Decision, Facts, decide
from ..domain.errors import MAX_MESSAGE, clean, cut
from ..domain.outcomes import Failed, Outcome, Succeeded
from ..domain.states import FINAL, JobState
from ..models.database import fetch, fetch_locking
from .job_columns import IN_LIVE, ClaimedJob, Fence
from .pruning import runs_go_with_jobs
from .requeueing import admitted, weight_of

# Plain successes are passed as arrays: with all endings as JSON one process reached 18,700 instead
# of 23,400 jobs/s. The arrays stand in subqueries, because a planner that knows their length would
# read a table of some ten thousand rows from end to end. Rows are locked in the order of their ids,
# as everywhere.
ENDINGS = """
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), settled AS MATERIALIZED (
    SELECT s.*, clock.now, clock.now - make_interval(secs => s.ago) AS ended_at
    FROM clock, (
        SELECT *
        FROM json_to_recordset(%(rows)s::json) AS input (
            id bigint, attempt integer, worker bigint, ran float8, ago float8, status text,
            outcome text, final boolean, cancel_no_matter boolean, due float8,
            failures integer, crashes integer, delay float8,
            queue text, priority smallint, weight float8,
            result text, reason text, error text, error_type text, error_code text,
            error_message text, traceback text, fingerprint text)
        UNION ALL
        SELECT plain.*, 'succeeded', 'succeeded', true, true, NULL, 0, 0, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
        FROM unnest(
            (SELECT %(ids)s::bigint[]), (SELECT %(attempts)s::integer[]),
            (SELECT %(workers)s::bigint[]), (SELECT %(ran)s::float8[]),
            (SELECT %(ago)s::float8[])) AS plain (id, attempt, worker, ran, ago)
    ) AS s
    ORDER BY s.id
)"""

# A row that ends moves to the history. Naming the statuses of the live partition keeps the planner
# out of all others. Within it rows are found by primary key only: with ``job.status = 'running'``
# the planner may take the small partial index on running jobs, which under churn is full of dead
# entries: 14,000 instead of 37,000 jobs/s. A cancel requested after the decision blocks the write,
# so that the ending is decided again with the cancel. A success is written either way.
SETTLE = f"""
{ENDINGS}, updated AS (
    UPDATE django_jobs_job AS job
    SET status = s.status, worker_id = NULL,
        failures = coalesce(s.failures, 0), crashes = coalesce(s.crashes, 0),
        available_at = CASE WHEN s.delay IS NULL THEN job.available_at
                            ELSE s.now + make_interval(secs => s.delay) END,
        queue = coalesce(s.queue, job.queue), priority = coalesce(s.priority, job.priority),
        rank = CASE WHEN s.delay IS NULL THEN job.rank
                    WHEN s.weight IS NOT NULL THEN date_part('epoch', s.now) + s.delay
                         - coalesce(s.priority, job.priority) * s.weight
                    ELSE job.rank + date_part('epoch', s.now) + s.delay
                         - date_part('epoch', job.available_at) END,
        started_at = s.ended_at - make_interval(secs => s.ran),
        finished_at = CASE WHEN s.final THEN s.ended_at END,
        result = s.result::jsonb,
        last_error = coalesce(s.error, job.last_error),
        reason = coalesce(s.reason, '')
    FROM settled AS s
    WHERE job.id = s.id AND job.attempt = s.attempt AND job.worker_id = s.worker
      AND job.{IN_LIVE} AND (job.cancel_requested_at IS NULL OR s.cancel_no_matter)
    RETURNING job.id, job.attempt, job.available_at, job.claimed_at, job.started_at
)
INSERT INTO django_jobs_run (
    job_id, attempt, outcome, worker_id, available_at, claimed_at, started_at, finished_at,
    error_type, error_code, error_message, traceback, fingerprint)
SELECT u.id, u.attempt, s.outcome, s.worker, coalesce(to_timestamp(s.due), u.available_at),
    u.claimed_at, u.started_at, s.ended_at,
    coalesce(s.error_type, ''), coalesce(s.error_code, ''), coalesce(s.error_message, ''),
    coalesce(s.traceback, ''), coalesce(s.fingerprint, '')
FROM updated AS u JOIN settled AS s ON s.id = u.id
RETURNING job_id
"""

# For successes that are not kept. Runs of earlier attempts go too, unless runs have an age.
SETTLE_AND_DELETE = f"""
{ENDINGS}, deleted AS (
    DELETE FROM django_jobs_job_live AS job USING settled AS s
    WHERE job.id = s.id AND job.attempt = s.attempt AND job.worker_id = s.worker
    RETURNING job.id, job.attempt, job.available_at, job.claimed_at
), progress AS (
    DELETE FROM django_jobs_progress WHERE job_id = ANY(ARRAY(SELECT id FROM deleted))
), receipts AS (
    DELETE FROM django_jobs_receipt WHERE job_id = ANY(ARRAY(SELECT id FROM deleted))
), earlier AS (
    DELETE FROM django_jobs_run
    WHERE %(with_runs)s AND job_id = ANY(ARRAY(SELECT id FROM deleted WHERE attempt > 1))
), written AS (
    INSERT INTO django_jobs_run (
        job_id, attempt, outcome, worker_id, available_at, claimed_at, started_at, finished_at,
        error_type, error_message, traceback, fingerprint)
    SELECT d.id, d.attempt, s.outcome, s.worker, d.available_at, d.claimed_at,
        s.ended_at - make_interval(secs => s.ran), s.ended_at, '', '', '', ''
    FROM deleted AS d JOIN settled AS s ON s.id = d.id
    WHERE NOT %(with_runs)s
)
SELECT id FROM deleted
"""

# Why a settle was refused: an earlier try wrote it and the answer to its commit was lost, a cancel
# came in between, or the job is no longer ours. The outcome distinguishes a run that we wrote from
# one that the reaper wrote for our attempt: that one is "lost".
EXPLAIN_REFUSAL = f"""
SELECT asked.id,
    (SELECT run.outcome FROM django_jobs_run AS run
     WHERE run.job_id = asked.id AND run.attempt = asked.attempt
       AND run.worker_id = asked.worker) AS outcome,
    EXISTS (SELECT 1 FROM django_jobs_job AS job
            WHERE job.id = asked.id AND job.attempt = asked.attempt
              AND job.worker_id = asked.worker AND job.{IN_LIVE}) AS ours
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::bigint[])
    AS asked (id, attempt, worker)
"""

# For jobs that were prefetched and never started: restores the row as it was before the claim, or
# cancels it if that was requested meanwhile. Leaves no run. Skips rows that another session has
# locked, because a claimer that waits for one row claims nothing.
GIVE_BACK = f"""
WITH held AS MATERIALIZED (
    SELECT job.id FROM django_jobs_job AS job
    WHERE job.id = ANY(%(ids)s::bigint[])
      AND job.attempt = (%(attempts)s::integer[])[array_position(%(ids)s::bigint[], job.id)]
      AND job.worker_id = (%(workers)s::bigint[])[array_position(%(ids)s::bigint[], job.id)]
      AND job.{IN_LIVE}
    ORDER BY job.id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_job AS job
SET status = CASE WHEN job.cancel_requested_at IS NULL THEN 'ready' ELSE 'cancelled' END,
    finished_at = CASE WHEN job.cancel_requested_at IS NULL THEN NULL
                       ELSE clock_timestamp() END,
    reason = CASE WHEN job.cancel_requested_at IS NULL THEN '' ELSE 'cancelled' END,
    worker_id = NULL, claimed_at = NULL, attempt = job.attempt - 1
WHERE job.id = ANY(ARRAY(SELECT id FROM held)) AND job.{IN_LIVE}
RETURNING job.id
"""


NO_RESULT = Succeeded()

PLAIN_SUCCESS = decide(Facts(failures=0, crashes=0, max_attempts=1, max_crashes=1), NO_RESULT, 0.0)
"""The decision about nearly every job: it succeeded, returned nothing and never failed."""

CANCEL_NO_MATTER = frozenset({JobState.SUCCEEDED, JobState.CANCELLED})
"""Statuses that a cancel in between would not change."""


@dataclass(slots=True)
class Ending:
    """An attempt that has ended and is to be settled. ``started`` and ``finished`` are values of
    ``time.monotonic()``; ``started`` is None if the attempt never started or its start is
    unknown. A job that is not ``kept`` is deleted if it succeeded. ``stays`` is why a retry must
    not go to the queue that its handler asked for; usually empty."""

    job: ClaimedJob
    outcome: Outcome
    started: float | None = None
    finished: float = field(default_factory=time.monotonic)
    cancel_requested: bool = False
    kept: bool = True
    stays: str = ""

    def stay(self, why: str) -> bool:
        """Have the job retried in its own queue. False if nothing asked for another."""
        if self.stays or not isinstance(self.outcome, Failed) or self.outcome.queue is None:
            return False
        self.stays = why
        return True


@dataclass(slots=True)
class Settled:
    """The result of settling one ending. ``decision`` is None if the lease was lost and nothing was
    written. ``earlier`` is true if an earlier try had written it and its answer was lost."""

    ending: Ending
    decision: Decision | None
    earlier: bool = False


def settle(endings: Sequence[Ending], now: float | None = None) -> list[Settled]:
    """Decide what follows each ended attempt, and write it with its run in one statement.

    Endings that a cancel overtook take a second statement. ``now`` is the database's time in epoch
    seconds, if the caller knows it; only jobs with a maximum age depend on it. An attempt that is
    no longer its worker's is returned with a ``decision`` of None.
    """
    decided = [Settled(ending, _decide(ending, now)) for ending in endings]
    written = _write(decided)
    if len(written) == len(decided):
        return decided
    refused = [settled for settled in decided if settled.ending.job.id not in written]
    again: list[Settled] = []
    for settled, (outcome, still_ours) in zip(refused, _explain(refused), strict=True):
        assert settled.decision is not None
        if outcome == settled.decision.run:  # our run with another outcome is the reaper's
            settled.earlier = True
            continue
        if still_ours and not settled.ending.cancel_requested:
            settled.ending.cancel_requested = True
            settled.decision = _decide(settled.ending, now)
            again.append(settled)
        else:
            settled.decision = None
    if again:
        written = _write(again)
        for settled in again:
            if settled.ending.job.id not in written:
                settled.decision = None
    return decided


def give_back(fences: Collection[Fence]) -> list[int]:
    """Make prefetched jobs that never started ready again and take their attempt back. A job whose
    cancel was requested ends cancelled. Return the ids of the jobs given back: all but those that
    are no longer their worker's or that another session has locked."""
    if not fences:
        return []
    ids, attempts, workers = map(list, zip(*fences, strict=True))
    rows = fetch_locking(GIVE_BACK, {"ids": ids, "attempts": attempts, "workers": workers})
    return [id_ for (id_,) in rows]


def _write(decided: Sequence[Settled]) -> set[int]:
    unkept = [one for one in decided if not one.ending.kept and _succeeds(one)]
    if not unkept:
        return {id_ for (id_,) in fetch(SETTLE, parameters(decided))}
    kept = [one for one in decided if one.ending.kept or not _succeeds(one)]
    written = _write(kept) if kept else set()
    # Last, because nothing is left by which a repeated batch could see that it was written.
    with_runs = {"with_runs": runs_go_with_jobs()}
    return written | {id_ for (id_,) in fetch(SETTLE_AND_DELETE, parameters(unkept) | with_runs)}


def _succeeds(settled: Settled) -> bool:
    return settled.decision is not None and settled.decision.status == JobState.SUCCEEDED


def _decide(ending: Ending, now: float | None) -> Decision:
    job = ending.job
    # An infinite due time, written by hand, must not reach the run, where Python could not read it.
    # JSON cannot carry it either, so as a row of JSON it is refused and settled row by row.
    if ending.outcome == NO_RESULT and not job.failures and isfinite(job.available_at):
        return PLAIN_SUCCESS
    facts = job.facts(cancel_requested=ending.cancel_requested)
    decision = decide(facts, ending.outcome, job.claimed_at if now is None else now)
    return decision if decision.queue is None else admitted(decision, job, ending.stays)


def _explain(refused: Sequence[Settled]) -> list[tuple[str | None, bool]]:
    jobs = [settled.ending.job for settled in refused]
    rows = fetch(
        EXPLAIN_REFUSAL,
        {
            "ids": [job.id for job in jobs],
            "attempts": [job.attempt for job in jobs],
            "workers": [job.worker for job in jobs],
        },
    )
    by_id = {id_: (outcome, ours) for id_, outcome, ours in rows}
    return [by_id[job.id] for job in jobs]


def parameters(decided: Iterable[Settled]) -> dict[str, Any]:
    """The parameters of :data:`SETTLE`. Arrays are passed as text, because the driver would inspect
    each number of a list."""
    now = time.monotonic()
    rows: list[dict[str, Any]] = []
    ids, attempts, workers, ran, ago = [], [], [], [], []
    for settled in decided:
        ending = settled.ending
        if settled.decision is PLAIN_SUCCESS and ending.started is not None:
            job = ending.job
            ids.append(str(job.id))
            attempts.append(str(job.attempt))
            workers.append(str(job.worker))
            ran.append(f"{ending.finished - ending.started:.6f}")
            ago.append(f"{max(now - ending.finished, 0.0):.6f}")
        else:
            rows.append(_row(settled, now))
    return {
        "rows": json.dumps(rows),
        "ids": _array(ids),
        "attempts": _array(attempts),
        "workers": _array(workers),
        "ran": _array(ran),
        "ago": _array(ago),
    }


def _array(items: Iterable[str]) -> str:
    return f"{{{','.join(items)}}}"


def _row(settled: Settled, now: float) -> dict[str, Any]:
    """One row of the statement's JSON. Keys that are left out are null there."""
    ending, decision = settled.ending, settled.decision
    assert decision is not None
    job, status = ending.job, decision.status
    row: dict[str, Any] = {
        "id": job.id,
        "attempt": job.attempt,
        "worker": job.worker,
        "status": status,
        "outcome": decision.run,
        "due": job.available_at,
        "ago": max(now - ending.finished, 0.0),
    }
    if ending.started is not None:
        row["ran"] = ending.finished - ending.started
    if status in FINAL:
        row["final"] = True
    if status in CANCEL_NO_MATTER or ending.cancel_requested:
        row["cancel_no_matter"] = True
    row |= {
        "failures": decision.failures,
        "crashes": decision.crashes,
        "delay": decision.delay,
        "result": decision.result,
        "reason": cut(clean(decision.reason), MAX_MESSAGE),
    }
    if decision.queue is not None or decision.priority is not None:
        row |= {
            "queue": decision.queue,
            "priority": decision.priority,
            "weight": weight_of(decision.queue or job.queue),
        }
    error = decision.error
    if error is not None:
        row |= {
            "error": error.summary,
            "error_type": error.type,
            "error_code": error.code,
            "error_message": error.message,
            "traceback": error.traceback,
            "fingerprint": error.fingerprint,
        }
    return row
