"""running -> what follows, and in which queue a retry runs.

Each ending is fenced and leaves a run. A job that never started is given back without one.
:mod:`.settling_rows` ends a job as dead if these statements cannot write its ending.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from django.db import transaction
from psycopg.types.numeric import Int8

from ..domain.breaker import is_failure, says_something
from ..domain.decisions import Decision, Facts, decide, passed_over
from ..domain.errors import MAX_MESSAGE, clean, cut
from ..domain.gates import parse
from ..domain.numbers import AGEING_WEIGHT
from ..domain.outcomes import Failed, Outcome, Succeeded
from ..domain.run_log import ALL_OF_ITS_TIME, RunCost
from ..domain.states import FAILURES, FINAL, JobState
from ..domain.workflows import Skipped, fate_of
from ..models import Job, Queue
from ..models.database import fetch, fetch_planned, jobs_connection, repeat_conflicts
from ..models.queue import is_queue_name
from .job_columns import ClaimedJob, Fence, as_array, text_array
from .known_types import own_parameters
from .notifying import BLOCKED, notify_after_commit
from .opening import EndedStep, follow_cancelled, open_next
from .pruning import runs_go_with_jobs
from .resource_outcomes import Seen, down_of, record, seen_breakers
from .settling_statements import (
    EXPLAIN_REFUSAL,
    FEW,
    GIVE_BACK,
    REASONS,
    SETTLE,
    SETTLE_AND_DELETE,
    SETTLE_AND_HAND_OVER,
    SETTLE_FEW,
    SETTLE_FEW_AND_HAND_OVER,
    SETTLE_ONE,
    SIGNALLED_ALREADY,
    cost_columns,
)


def admitted(decision: Decision, job: ClaimedJob, stays: str = "") -> Decision:
    """``decision``, if ``job`` can go to its queue. Otherwise the job is retried in its own queue,
    and the error says why. ``stays`` is a reason that is already known.

    A key that is taken after this look makes PostgreSQL refuse the write.
    """
    queue = decision.queue
    assert queue is not None
    assert decision.error is not None  # a retry is a failure
    if queue == job.queue:
        return decision
    problem = stays or _problem(job, queue)
    if not problem:
        return decision
    note = f"not moved to the queue {queue!r}: {problem}"
    return replace(decision, queue=None, error=decision.error.noted(note))


def weight_of(queue: str) -> float:
    """The weight of a point of priority in ``queue``."""
    row = Queue.objects.recent(queue, jobs_connection().alias)
    return AGEING_WEIGHT if row is None else row.priority_weight


def gates_in(queue: str, job: ClaimedJob) -> str | None:
    """The gates of ``job`` in ``queue``, as the column has them; None if they stay as they are."""
    try:
        return None if job.gates is None else parse(job.gates).in_queue(queue).text
    except ValueError:  # a row that was not written by enqueue
        return None


def _problem(job: ClaimedJob, queue: str) -> str:
    alias = jobs_connection().alias
    if not is_queue_name(queue) or Queue.objects.recent(queue, alias) is None:
        return "there is no such queue"
    if job.idempotency_key is None:
        return ""
    holders = Job.objects.using(alias).holding_key(queue, job.idempotency_key)
    holder = holders.exclude(pk=job.id).values_list("pk", flat=True).first()
    return "" if holder is None else f"job {holder} holds its idempotency key there"


NO_RESULT = Succeeded()

PLAIN_SUCCESS = decide(Facts(failures=0, crashes=0, max_attempts=1, max_crashes=1), NO_RESULT, 0.0)
"""The decision about nearly every job: it succeeded, returned nothing and never failed."""

CANCEL_NO_MATTER = frozenset({JobState.SUCCEEDED, JobState.CANCELLED})
"""Statuses that a cancel in between would not change."""

NOTHING_SEEN: Mapping[str, Seen] = {}


@dataclass(slots=True)
class Ending:
    """An attempt that has ended and is to be settled. ``started`` and ``finished`` are values of
    ``time.monotonic()``; ``started`` is None if the attempt never started or its start is
    unknown. A job that is not ``kept`` is deleted if it succeeded. ``stays`` is why a retry must
    not go to the queue that its handler asked for; usually empty. ``traceparent`` is the span of
    the attempt, if it has one."""

    job: ClaimedJob
    outcome: Outcome
    started: float | None = None
    finished: float = field(default_factory=time.monotonic)
    cancel_requested: bool = False
    cancel_reason: str = ""
    kept: bool = True
    stays: str = ""
    cost: RunCost | None = None
    traceparent: str = ""
    log: str | None = None

    def stay(self, why: str) -> bool:
        """Have the job retried in its own queue. False if nothing asked for another."""
        if self.stays or not isinstance(self.outcome, Failed) or self.outcome.queue is None:
            return False
        self.stays = why
        return True


@dataclass(slots=True)
class HandOver:
    """What a settle did for jobs that were blocked.

    ``queues`` have jobs that it made ready. ``freed``: slots were left that another line may need.
    With ``compares`` all are left, and otherwise those of the ``compared`` gates, so that an
    admission gives them to the best of all lines.
    """

    queues: set[str] = field(default_factory=set)
    freed: bool = False
    compares: bool = False
    compared: Collection[str] = ()


@dataclass(slots=True)
class Settled:
    """The result of settling one ending. ``decision`` is None if the lease was lost and nothing was
    written. ``earlier`` is true if an earlier try had written it and its answer was lost."""

    ending: Ending
    decision: Decision | None
    earlier: bool = False

    @property
    def failed(self) -> bool:
        """Whether the attempt failed, ran out of time or was lost."""
        return self.decision is not None and self.decision.run in FAILURES


def settle(
    endings: Sequence[Ending], now: float | None = None, *, hand_over: HandOver | None = None
) -> list[Settled]:
    """Decide what follows each ended attempt, and write it with its run in one statement.

    Endings that a cancel overtook take a second statement. ``now`` is the database's time in epoch
    seconds, if the caller knows it; only jobs with a maximum age depend on it. An attempt that is
    no longer its worker's is returned with a ``decision`` of None. ``hand_over`` is filled in;
    without it, workers are notified to look for blocked jobs.
    """
    write = _settle_and_record
    if any(one.job.workflow_run_id is not None for one in endings):
        write = _settle_and_open
    if hand_over is not None:
        return write(endings, now, hand_over)
    hand_over = HandOver(compares=True)
    settled = write(endings, now, hand_over)
    for queue in hand_over.queues:
        notify_after_commit(queue)
    if hand_over.freed:
        for queue in {one.job.queue for one in endings if one.job.gates is not None}:
            notify_after_commit(BLOCKED + queue)
    return settled


@repeat_conflicts
def _settle_and_open(
    endings: Sequence[Ending], now: float | None, hand_over: HandOver
) -> list[Settled]:
    with transaction.atomic(using=jobs_connection().alias):
        settled = _settle_and_record(endings, now, hand_over)
        opened = open_next(ended_steps(settled))
    hand_over.queues |= opened.queues
    hand_over.freed |= bool(opened.blocked)
    for queue in opened.blocked:
        notify_after_commit(BLOCKED + queue)
    return settled


def ended_steps(settled: Iterable[Settled]) -> list[EndedStep]:
    """The steps of workflows that have just ended. A settle that an earlier try had written has
    opened what comes next as well."""
    return [
        EndedStep(
            one.ending.job.id,
            run,
            fate_of(one.decision.status, one.decision.skipped),
            one.decision.status == JobState.CANCELLED and one.decision.skipped is None,
        )
        for one in settled
        if (run := one.ending.job.workflow_run_id) is not None
        and one.decision is not None
        and one.decision.status in FINAL
        and not one.earlier
    ]


def _settle_and_record(
    endings: Sequence[Ending], now: float | None, hand_over: HandOver
) -> list[Settled]:
    using = [one for one in endings if one.job.gates is not None and one.job.resources]
    if not using:
        return _settle(endings, now, hand_over)
    seen = seen_breakers(fresh=any(is_failure(one.outcome) for one in using))
    settled = _settle(endings, now, hand_over, seen)
    if seen:
        record(
            [
                (one.ending.job, is_failure(one.ending.outcome))
                for one in settled
                if one.decision is not None
                and says_something(one.ending.outcome)
                and one.decision.status != JobState.CANCELLED
            ],
            seen,
        )
    return settled


def _settle(
    endings: Sequence[Ending],
    now: float | None,
    hand_over: HandOver,
    seen: Mapping[str, Seen] = NOTHING_SEEN,
) -> list[Settled]:
    _read_reasons(endings)
    decided = [Settled(ending, _decide(ending, now, seen)) for ending in endings]
    written = _write(decided, hand_over)
    _find_signalled(decided, hand_over)
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
            _read_reasons([settled.ending])
            settled.decision = _decide(settled.ending, now, seen)
            again.append(settled)
        else:
            settled.decision = None
    if again:
        written = _write(again, hand_over)
        for settled in again:
            if settled.ending.job.id not in written:
                settled.decision = None
    return decided


def _read_reasons(endings: Iterable[Ending]) -> None:
    """Who cancelled the jobs of which that was requested, and why."""
    asked = {ending.job.id: ending for ending in endings if ending.cancel_requested}
    for id_, reason in fetch(REASONS, {"ids": list(asked)}) if asked else ():
        asked[id_].cancel_reason = reason


def _find_signalled(decided: Sequence[Settled], hand_over: HandOver) -> None:
    """Hand over the jobs that were to wait for a signal, and had it already."""
    ids = [
        one.ending.job.id
        for one in decided
        if one.decision is not PLAIN_SUCCESS
        and one.decision is not None
        and one.decision.awaits is not None
    ]
    for queue, status in fetch(SIGNALLED_ALREADY, {"ids": ids}) if ids else ():
        if status == JobState.READY:
            hand_over.queues.add(queue)
        else:
            hand_over.freed = True
            notify_after_commit(BLOCKED + queue)


def give_back(fences: Collection[Fence]) -> list[int]:
    """Make prefetched jobs that never started ready again and take their attempt back. A job whose
    cancel was requested ends cancelled. Return the ids of the jobs given back: all but those that
    are no longer their worker's or that another session has locked."""
    if not fences:
        return []
    ids, attempts, workers = map(list, zip(*fences, strict=True))
    return _give_back({"ids": ids, "attempts": attempts, "workers": workers})


@repeat_conflicts
def _give_back(fences: dict[str, Any]) -> list[int]:
    with transaction.atomic(using=jobs_connection().alias):
        rows = fetch(GIVE_BACK, fences)
        follow_cancelled(rows)
    return [id_ for id_, _ in rows]


def _write(decided: Sequence[Settled], hand_over: HandOver) -> set[int]:
    if not decided:
        return set()
    unkept = [one for one in decided if not _is_kept(one)]
    if not unkept:
        if not hand_over.compares and any(
            one.ending.job.hands_over and one.ending.job.gates not in hand_over.compared
            for one in decided
        ):
            return _write_and_hand_over(decided, hand_over)
        hand_over.freed |= any(one.ending.job.gates is not None for one in decided)
        few = SETTLE_FEW if decided[1:] else SETTLE_ONE
        rows = _fetch(SETTLE, few, decided, {"id": Int8(decided[0].ending.job.id)})
        return {id_ for (id_,) in rows}
    kept = [one for one in decided if _is_kept(one)]
    written = _write(kept, hand_over) if kept else set()
    hand_over.freed |= any(one.ending.job.gates is not None for one in unkept)
    # Last, because nothing is left by which a repeated batch could see that it was written.
    with_runs = {"with_runs": runs_go_with_jobs()}
    return written | {id_ for (id_,) in fetch(SETTLE_AND_DELETE, parameters(unkept) | with_runs)}


def _fetch(
    many: str, few: str, decided: Sequence[Settled], given: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Run the statement for ``many`` jobs, or that for a ``few``, which is planned once."""
    given = {**parameters(decided), **given}
    if decided[FEW:]:
        return fetch(many, given)
    given["few"] = as_array([one.ending.job.id for one in decided])
    return fetch_planned(few, given)


def _write_and_hand_over(decided: Sequence[Settled], hand_over: HandOver) -> set[int]:
    given = {**own_parameters(), "compared": [*hand_over.compared]}
    rows = _fetch(SETTLE_AND_HAND_OVER, SETTLE_FEW_AND_HAND_OVER, decided, given)
    opened = [(queue, shared) for id_, queue, shared in rows if id_ is None]
    hand_over.queues.update(queue for queue, _ in opened)
    # A line of a key alone keeps its slots or has no use for them: the other lines of that key, if
    # there are any, wait for the next poll.
    free = sum(one.ending.job.shares_gates for one in decided)
    hand_over.freed |= free > sum(shared for _, shared in opened)
    hand_over.freed |= any(one.ending.job.gates in hand_over.compared for one in decided)
    hand_over.freed |= any(one.decision and one.decision.queue for one in decided)  # it moved
    return {id_ for id_, _, _ in rows if id_ is not None}


def _is_kept(settled: Settled) -> bool:
    """A step of a workflow stays as long as its run."""
    ending, decision = settled.ending, settled.decision
    if ending.kept or ending.job.workflow_run_id is not None:
        return True
    return decision is None or decision.status != JobState.SUCCEEDED


def _decide(ending: Ending, now: float | None, seen: Mapping[str, Seen] = NOTHING_SEEN) -> Decision:
    job = ending.job
    # An infinite due time, written by hand, must not reach the run, where Python could not read it.
    # JSON cannot carry it either, so as a row of JSON it is refused and settled row by row.
    if ending.outcome == NO_RESULT and not job.failures and isfinite(job.available_at):
        return PLAIN_SUCCESS
    down = down_of(job, seen) if seen else ""
    cancel, started = ending.cancel_requested, ending.started
    facts = job.facts(cancel_requested=cancel, down=down, started=started)
    time_now = job.time_at(ending.finished) if now is None else now
    decision = decide(facts, ending.outcome, time_now)
    if decision.status == JobState.CANCELLED and ending.cancel_reason and not decision.skipped:
        return replace(decision, reason=ending.cancel_reason)  # as the statement keeps it
    if decision.status == JobState.DEAD and job.is_optional:
        return passed_over(decision)
    return decision if decision.queue is None else admitted(decision, job, ending.stays)


def _explain(refused: Sequence[Settled]) -> list[tuple[str | None, bool]]:
    jobs = [settled.ending.job for settled in refused]
    fences = {
        "ids": [job.id for job in jobs],
        "attempts": [job.attempt for job in jobs],
        "workers": [job.worker for job in jobs],
    }
    by_id = {id_: (outcome, ours) for id_, outcome, ours in fetch(EXPLAIN_REFUSAL, fences)}
    return [by_id[job.id] for job in jobs]


def parameters(decided: Iterable[Settled]) -> dict[str, Any]:
    now = time.monotonic()
    rows: list[dict[str, Any]] = []
    ids, attempts, workers, ran, ago = [], [], [], [], []
    costs: list[RunCost | None] = []
    traceparents: list[str] = []
    for settled in decided:
        ending = settled.ending
        if settled.decision is PLAIN_SUCCESS and ending.started is not None and ending.log is None:
            job = ending.job
            ids.append(job.id)
            attempts.append(job.attempt)
            workers.append(job.worker)
            ran.append(f"{ending.finished - ending.started:.6f}")
            ago.append(f"{max(now - ending.finished, 0.0):.6f}")
            costs.append(ending.cost)
            traceparents.append(ending.traceparent)
        else:
            rows.append(_row(settled, now))
    return {
        "rows": json.dumps(rows),
        "ids": as_array(ids),
        "attempts": as_array(attempts),
        "workers": as_array(workers),
        "ran": as_array(ran),
        "ago": as_array(ago),
        "traceparents": text_array(traceparents) if any(traceparents) else "{}",
        **cost_columns(costs),
    }


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
    if ending.cost is not None:
        row |= ending.cost._asdict()
        if ending.cost.cpu_seconds == ALL_OF_ITS_TIME:  # JSON has no infinity
            row["cpu_seconds"] = row.get("ran")
    if status in FINAL:
        row["final"] = True
    is_passed = decision.skipped == Skipped.PASSED  # if a person cancels it, it is cancelled
    if (status in CANCEL_NO_MATTER and not is_passed) or ending.cancel_requested:
        row["cancel_no_matter"] = True
    row |= {
        "failures": decision.failures,
        "crashes": decision.crashes,
        "delay": decision.delay,
        "result": decision.result,
        "reason": cut(clean(decision.reason), MAX_MESSAGE),
        "awaits": decision.awaits,
        "traceparent": ending.traceparent,
        "log": ending.log,
        "skipped": None if job.workflow_run_id is None else decision.skipped,
    }
    if decision.run in FAILURES and status in (JobState.SCHEDULED, JobState.READY):
        row["retry_for"] = job.retry_for
    if decision.queue is not None or decision.priority is not None:
        row |= {
            "queue": decision.queue,
            "gates": None if decision.queue is None else gates_in(decision.queue, job),
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
