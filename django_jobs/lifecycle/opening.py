"""waiting -> ready or cancelled, of the steps of workflows; and the ends of their runs.

Each door that ends a step calls :func:`open_next` in the same transaction. All that change the
steps of a run lock in one order: steps before runs, and what one statement locks by its id. A
cascade of skipped steps locks one level of the graph after the other, so that two sessions may wait
for each other: then one is repeated.

A step that waits is counted down under its lock. One that does not was skipped, and a retry may
bring it back just now, which counts the steps before it that have not ended. So who ends one of
these, or adds one, locks the run, as the retry does before it counts, and looks again: see
:func:`demand_absent`.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ..domain.workflows import Fate, Skipped
from ..models.database import (
    REFUSALS,
    ChangedMeanwhile,
    execute,
    fetch,
    fetch_planned,
    jobs_connection,
)
from ..signals import workflow_finished
from .compensating import compensate, note_failed, note_refused
from .job_columns import as_array
from .notifying import BLOCKED, emit_after_commit, notify_after_commit
from .step_insert import ASKED, EDGE_FATE, opening_at, value_for_job

PAGE = 10_000
"""Steps that one statement skips, and after which it looks for the next ones. The worker ends a
statement that takes longer than a few seconds; 40,000 took 2."""


def counting_down(all_of: str, met: str) -> str:
    """A part of a statement that locks those of ``child`` that wait, if ``all_of`` is true, and
    counts down those that are ``met``."""
    edges = value_for_job("ARRAY(SELECT edges FROM child)", "ARRAY(SELECT id FROM child)")
    return f"""clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), locked AS MATERIALIZED (
    SELECT job.id FROM django_jobs_job_live AS job
    WHERE job.id = ANY(ARRAY(SELECT id FROM child WHERE {all_of}))
      AND job.status = 'waiting' AND job.prerequisites > 0
    ORDER BY job.id
    FOR NO KEY UPDATE
), counted AS (
    UPDATE django_jobs_job_live AS job
    SET {opening_at(f"job.prerequisites - {edges}")}
    FROM clock
    WHERE job.id = ANY(ARRAY(SELECT id FROM locked{met}))
    RETURNING job.id, job.queue, job.status
)"""


# An open step that waits for a signal has no prerequisites left. A step that another session skips
# meanwhile has moved to the history: see repeat_conflicts. One that is "absent" does not wait. All
# others are locked in the order of their ids. The lengths of the arrays are hidden from the
# planner, as in SETTLE. IS TRUE lets it look each id up, where it may join 600 rows with 600.
def _count_down(asked: str, fate: str) -> str:
    """The statement, where a parent's end means ``fate``, by the results that were ``asked``."""
    return f"""
WITH ended AS MATERIALIZED (
    SELECT id, run, fate FROM unnest(
        (SELECT %(ids)s::bigint[]), (SELECT %(runs)s::bigint[]), (SELECT %(fates)s::text[]))
        AS step (id, run, fate)
), given AS MATERIALIZED (
    SELECT ended.id AS parent, ended.run, ended.fate, dependency.*
    FROM ended, LATERAL (
        SELECT child_id AS child, "when", condition FROM django_jobs_dependency
        WHERE parent_id = ended.id OFFSET 0) AS dependency
), {asked}edge AS MATERIALIZED (
    SELECT parent, run, child, fate, "when" IN ('finished', fate) AS met FROM (
        SELECT parent, run, child, "when", {fate} AS fate FROM given OFFSET 0) AS given
), child AS MATERIALIZED (
    SELECT child AS id, count(*) AS edges, bool_and(met) AS met FROM edge
    GROUP BY child ORDER BY child
), {counting_down("true", " WHERE id NOT IN (SELECT id FROM child WHERE NOT met)")},
broken AS MATERIALIZED (
    SELECT id FROM child WHERE NOT met AND (id IN (SELECT id FROM locked)) IS TRUE
)
SELECT DISTINCT 'opened', NULL::bigint, queue, status, NULL::bigint FROM counted
WHERE status IN ('ready', 'blocked')
UNION ALL
SELECT 'broken', child, NULL,
    CASE WHEN bool_or(fate = 'failed' AND NOT met) THEN 'failed' ELSE 'unneeded' END,
    coalesce(min(parent) FILTER (WHERE fate = 'failed' AND NOT met),
             min(parent) FILTER (WHERE NOT met))
FROM edge WHERE (child IN (SELECT id FROM broken)) IS TRUE
GROUP BY child
UNION ALL
SELECT 'absent', child, NULL, NULL, min(run) FROM edge
WHERE child NOT IN (SELECT id FROM locked)
GROUP BY child
UNION ALL
SELECT 'last', run, NULL, NULL, count(*) FILTER (WHERE id NOT IN (SELECT parent FROM edge))
FROM ended
WHERE id NOT IN (
    SELECT parent FROM edge WHERE (child IN (SELECT id FROM locked)) IS TRUE)
GROUP BY run
UNION ALL
SELECT 'stops', run.id, dead.step, NULL, NULL
FROM django_jobs_workflowrun AS run, LATERAL (
    SELECT min(job.step) AS step FROM django_jobs_job_live AS job
    WHERE job.id = ANY(ARRAY(SELECT id FROM ended WHERE ended.run = run.id AND fate = 'failed'))
      AND job.status = 'dead') AS dead
WHERE run.id = ANY(ARRAY(SELECT run FROM ended WHERE fate = 'failed'))
  AND run.on_failure = 'cancel' AND run.cancel_requested_at IS NULL
  AND run.compensations ->> 'begun' IS NULL AND dead.step IS NOT NULL
"""


COUNT_DOWN_ASKED = _count_down(f"{ASKED}, ", EDGE_FATE)
# In half the time, where no result decides: the planner looks into no history.
COUNT_DOWN = _count_down("", "fate")

# And again in half the time, for steps that succeeded. Changes nothing if one that comes after them
# waits for a failure, or depends on a result.
COUNT_DOWN_MET = f"""
WITH edge AS MATERIALIZED (
    SELECT parent_id AS parent, child_id AS child, workflow_run_id AS run,
        "when" <> 'failed' AND condition IS NULL AS met, condition IS NOT NULL AS asks
    FROM django_jobs_dependency
    WHERE parent_id = ANY((SELECT %(ids)s::bigint[])::bigint[])
), child AS MATERIALIZED (
    SELECT child AS id, count(*) AS edges FROM edge GROUP BY child ORDER BY child
), {counting_down("(SELECT bool_and(met) FROM edge)", "")}
SELECT (SELECT coalesce(bool_and(met), true) FROM edge), (SELECT bool_or(asks) FROM edge),
    ARRAY(SELECT DISTINCT queue FROM counted WHERE status = 'ready'),
    ARRAY(SELECT DISTINCT queue FROM counted WHERE status = 'blocked'),
    ARRAY(SELECT id FROM child WHERE id NOT IN (SELECT id FROM counted)),
    ARRAY(SELECT DISTINCT run FROM edge WHERE child NOT IN (SELECT id FROM counted)),
    ARRAY(SELECT id FROM unnest((SELECT %(ids)s::bigint[])) AS step (id)
          WHERE id NOT IN (SELECT parent FROM edge))
"""

CAUSE = value_for_job("SELECT parents FROM input", "SELECT ids FROM input")

# Of steps that are locked. The causes are read before: a look at each for its step could read the
# partition from end to end to which the steps move meanwhile.
SKIP = f"""
WITH input AS MATERIALIZED (
    SELECT %(ids)s::bigint[] AS ids, %(failed)s::boolean[] AS failed,
        %(parents)s::bigint[] AS parents
), cause AS MATERIALIZED (
    SELECT jsonb_object_agg(parent.id, parent.step || CASE parent.status
            WHEN 'succeeded' THEN ' succeeded' WHEN 'dead' THEN ' failed'
            ELSE CASE WHEN parent.skipped IS NULL THEN ' was cancelled' ELSE ' was skipped' END
        END) AS by_parent,
        array_agg(parent.id) FILTER (WHERE parent.status = 'succeeded') AS succeeded
    FROM django_jobs_job AS parent
    WHERE parent.id = ANY((SELECT parents FROM input)::bigint[])
), asking AS MATERIALIZED (
    SELECT child_id, parent_id FROM django_jobs_dependency
    WHERE parent_id = ANY((SELECT succeeded FROM cause)::bigint[]) AND condition IS NOT NULL
)
UPDATE django_jobs_job AS job
SET status = 'cancelled', finished_at = clock_timestamp(),
    skipped = CASE WHEN {value_for_job("SELECT failed FROM input", "SELECT ids FROM input")}
                   THEN 'failed' ELSE 'unneeded' END,
    reason = 'skipped: ' || ((SELECT by_parent FROM cause) ->> {CAUSE}::text)
        || CASE WHEN (job.id, {CAUSE}) IN (SELECT child_id, parent_id FROM asking)
                THEN ' with another result' ELSE '' END
WHERE job.id = ANY((SELECT ids FROM input)::bigint[]) AND job.status = 'waiting'
RETURNING job.id, job.workflow_run_id, job.skipped
"""

LOCK_RUNS = """
SELECT id FROM django_jobs_workflowrun WHERE id = ANY((SELECT %(runs)s::bigint[])::bigint[])
ORDER BY id
FOR NO KEY UPDATE
"""

# As after the cancel of a person, no step starts again until all have ended, and maintenance
# cancels those that were locked. Unlike then the run fails, and undoes what succeeded. A cancel
# that a person has requested meanwhile stays.
STOP = """
UPDATE django_jobs_workflowrun
SET on_failure = 'stopping', cancel_requested_at = clock_timestamp(), reason = %(reason)s
WHERE id = %(run)s AND on_failure = 'cancel' AND cancel_requested_at IS NULL
"""

# After the lock, so that of two settles that end the last steps the second sees the first. The
# count says when to look whether a step is live. One that is too low ends no run too early. It is
# reported, and counts as 0: with the check of the column, all endings of the settle would be lost.
# One that is too high looks like that of a run with live steps, without a look at them at each end;
# ``stuck`` finds it. Dead steps are in the partition of the live ones. Three are
# named, failed compensations first: what these should have undone stays done. What a person cancels
# is neither failed nor undone. One that was stopping has stopped: what undoes its steps may run.
# With NOT EXISTS a plan that is kept from a small table reads all live jobs, and with the status of
# the steps that are left, which is dead, all dead ones.
# The ids are named three times, or the planner may read all runs.
COUNT_ENDS = """
WITH input AS MATERIALIZED (
    SELECT id, ends, cancelled FROM unnest(
        (SELECT %(runs)s::bigint[]), (SELECT %(ends)s::integer[]),
        (SELECT %(cancelled)s::boolean[])) AS ended (id, ends, cancelled)
), counted AS MATERIALIZED (
    SELECT run.id, greatest(run.ends_left - input.ends, 0) AS ends_left,
        CASE WHEN run.reason = '' AND input.cancelled THEN 'a step was cancelled'
             ELSE run.reason END AS reason,
        run.on_failure = 'stopping' AS stopping,
        run.cancel_requested_at IS NOT NULL AND run.on_failure <> 'stopping' AS stopped,
        CASE WHEN %(undo)s THEN run.compensations END AS compensations,
        (run.compensations ->> 'begun')::bigint AS begun, run.ends_left < input.ends AS is_too_low,
        run.status = 'running' AND (run.ends_left <= input.ends OR %(look)s) AND (
            SELECT 1 FROM django_jobs_job_live AS job
            WHERE job.workflow_run_id = run.id AND job.status <> 'dead' LIMIT 1) IS NULL AS is_over
    FROM input JOIN django_jobs_workflowrun AS run USING (id)
    WHERE run.id = ANY(%(runs)s::bigint[])
), failed AS MATERIALIZED (
    SELECT counted.id, counted.compensations, array_to_string(dead.steps[:3], ', ')
        || CASE WHEN cardinality(dead.steps) > 3 THEN ', ...' ELSE '' END
        || ' failed' || %(note)s AS reason
    FROM counted, LATERAL (SELECT ARRAY(
        SELECT job.step FROM django_jobs_job_live AS job
        WHERE job.workflow_run_id = counted.id
        ORDER BY coalesce(job.id >= counted.begun, false) DESC, job.id
        LIMIT 4) AS steps OFFSET 0) AS dead
    WHERE counted.is_over AND NOT counted.stopped AND dead.steps <> '{}'
)
UPDATE django_jobs_workflowrun AS run
SET ends_left = ended.ends_left, reason = ended.reason,
    status = coalesce(ended.status, run.status),
    finished_at = CASE WHEN ended.status IS NULL THEN run.finished_at ELSE clock_timestamp() END,
    on_failure = CASE WHEN ended.has_stopped THEN 'cancel' ELSE run.on_failure END,
    cancel_requested_at = CASE WHEN NOT ended.has_stopped THEN run.cancel_requested_at END
FROM (
    SELECT counted.id, counted.ends_left, failed.compensations,
        counted.is_over AND counted.stopping AS has_stopped,
        counted.begun IS NOT NULL AS undoing, counted.is_too_low,
        CASE WHEN failed.compensations IS NULL THEN coalesce(failed.reason, counted.reason)
             ELSE counted.reason END AS reason,
        CASE WHEN NOT counted.is_over OR failed.compensations IS NOT NULL THEN NULL
             WHEN failed.id IS NOT NULL THEN 'failed'
             WHEN counted.stopped OR counted.reason <> '' THEN 'cancelled'
             ELSE 'succeeded' END AS status
    FROM counted LEFT JOIN failed USING (id) OFFSET 0
) AS ended
WHERE run.id = ended.id AND run.id = ANY(%(runs)s::bigint[])
RETURNING run.id, run.name, ended.status, run.reason, ended.compensations, ended.undoing,
    ended.is_too_low
"""

BACK = """
SELECT job.id FROM django_jobs_job_live AS job
WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'waiting' AND job.prerequisites > 0
LIMIT 1
"""


class EndedStep(NamedTuple):
    """A step that has just ended. ``cancelled``: it ended so, and was not skipped."""

    id: int
    run: int
    fate: Fate
    cancelled: bool = False


@dataclass(slots=True)
class Opened:
    """What follows from the end of steps: ``queues`` with jobs that became ready, and those with
    jobs that wait for an admission (``blocked``)."""

    queues: set[str] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)

    @property
    def hints(self) -> set[str]:
        return self.queues | {BLOCKED + queue for queue in self.blocked}


def open_next(ended: Sequence[EndedStep]) -> Opened:
    """Open or skip the steps that come after those that have just ended, and end the runs that
    have no step left.

    Call it in the transaction that ended them. Each step that is skipped skips those after it, a
    statement or two for each level of the graph, and for each ``PAGE`` of its steps.
    """
    opened = Opened()
    ends: Counter[int] = Counter()
    cancelled = {step.run for step in ended if step.cancelled}
    stops: dict[int, str] = {}
    levels: deque[Sequence[EndedStep]] = deque([ended] if ended else [])
    absent: set[int] = set()
    while levels:
        level = levels.popleft()
        rest = _count_down_met(level, opened, ends, absent)
        if rest is None:
            break
        broken: list[tuple[int, str, int]] = []
        ids, runs, fates, _ = zip(*level, strict=True)
        arrays = {"ids": as_array(ids), "runs": as_array(runs), "fates": as_array(fates)}
        for what, id_, queue, word, number in fetch(rest, arrays):
            match what:
                case "opened":
                    (opened.queues if word == "ready" else opened.blocked).add(queue)
                case "broken":
                    broken.append((id_, word, number))
                case "absent":
                    absent.add(id_)
                    ends[number] += 0  # locks the run
                case "last":
                    ends[id_] += number
                case "stops":
                    stops[id_] = f"cancelled: {queue} failed"
        levels.extend(_skip(broken[at : at + PAGE]) for at in range(0, len(broken), PAGE))
    if stops:
        _stop(stops, ends, cancelled)
    if ends or cancelled:
        count_ends(ends, cancelled, absent)
    return opened


def _stop(stops: Mapping[int, str], ends: Counter[int], cancelled: Set[int]) -> None:
    """Cancel what is left of these runs, each with the reason. They end as failed with the last
    step that is asked to stop."""
    from .cancelling import cancel_free_steps  # a process that enqueues stops no run

    for run, why in stops.items():
        ends[run] += cancel_free_steps(run, why, PAGE)
    fetch(LOCK_RUNS, {"runs": as_array(sorted(ends.keys() | cancelled))})
    for run, why in stops.items():
        execute(STOP, {"run": run, "reason": why})


def _count_down_met(
    level: Sequence[EndedStep], opened: Opened, ends: Counter[int], absent: set[int]
) -> str | None:
    """Count down and note what follows, if that is all to do. Else return the statement for it."""
    fates = {step.fate for step in level}
    if fates != {Fate.SUCCEEDED}:
        return COUNT_DOWN_ASKED if Fate.SUCCEEDED in fates else COUNT_DOWN
    runs = {step.id: step.run for step in level}
    ((met, asks, ready, blocked, away, runs_of_these, last),) = fetch_planned(
        COUNT_DOWN_MET, {"ids": as_array(runs)}
    )
    if not met:
        return COUNT_DOWN_ASKED if asks else COUNT_DOWN
    opened.queues.update(ready)
    opened.blocked.update(blocked)
    absent.update(away)
    ends.update(dict.fromkeys(runs_of_these, 0))  # locks them
    ends.update(runs[step] for step in last)
    return None


def demand_absent(steps: Collection[int]) -> None:
    """Raise :class:`ChangedMeanwhile` if one of these steps waits now. Their runs are locked."""
    if steps and fetch(BACK, {"ids": list(steps)}):
        raise ChangedMeanwhile("a step that was skipped has come back")


def skip_and_open(broken: Sequence[tuple[int, str, int]]) -> Opened:
    """:func:`open_next` after skipping waiting steps that can never run: each with why, and the
    step that is the cause."""
    return open_next(_skip(broken)) if broken else Opened()


def follow_cancelled(jobs: Iterable[tuple[int, int | None]]) -> None:
    """:func:`open_next` after jobs, each with its run if it is a step, were cancelled. Notifies."""
    _follow([EndedStep(id_, run, Fate.FAILED, True) for id_, run in jobs if run is not None])


def follow_dropped(jobs: Iterable[tuple[int, int | None, str | None]]) -> None:
    """The same after the system dropped jobs, each with why it counts as skipped: a step among them
    that does not has failed."""
    _follow(
        [
            EndedStep(id_, run, Fate.SUCCEEDED if skipped else Fate.FAILED)
            for id_, run, skipped in jobs
            if run is not None
        ]
    )


def _follow(ended: Sequence[EndedStep]) -> None:
    if ended:
        for hint in open_next(ended).hints:
            notify_after_commit(hint)


def _skip(steps: Sequence[tuple[int, str, int]]) -> list[EndedStep]:
    ids, skipped, parents = zip(*sorted(steps), strict=True)
    parameters = {
        "ids": as_array(ids),
        "failed": as_array(why == Skipped.FAILED for why in skipped),
        "parents": as_array(parents),
    }
    return [
        EndedStep(id_, run, Fate.FAILED if why == Skipped.FAILED else Fate.UNNEEDED)
        for id_, run, why in fetch(SKIP, parameters)
    ]


def count_ends(
    ends: Mapping[int, int],
    cancelled: Set[int] = frozenset(),
    absent: Collection[int] = (),
    *,
    look: bool = False,
    undo: bool = True,
    note: str = "",
) -> None:
    """Count, by run, the steps that ended and that no other one waits for, and end the runs without
    a live step. A step of the runs ``cancelled`` was cancelled. ``absent`` are the steps after
    those that ended and that did not wait. ``look`` for a live step whatever the count says.

    A run that failed first undoes what succeeded, if it has compensations for it, unless ``undo``
    is false. ``note`` follows the reason of a run that failed.
    """
    runs = sorted(ends.keys() | cancelled)
    parameters = {
        "runs": as_array(runs),
        "ends": as_array(ends.get(run, 0) for run in runs),
        "cancelled": as_array(run in cancelled for run in runs),
        "look": look,
        "undo": undo,
        "note": note,
    }
    rows = fetch_planned(COUNT_ENDS, parameters, before=LOCK_RUNS)
    demand_absent(absent)
    not_undone: dict[str, list[int]] = {}
    for id_, name, status, reason, compensations, undoing, is_too_low in rows:
        if is_too_low:
            emit_after_commit("workflow_miscounted", logging.ERROR, run=id_, workflow=name)
        if status is not None:
            if undoing:
                note_failed(id_)
            result = {"run_id": id_, "status": status, "reason": reason}
            send = partial(workflow_finished.send_robust, name, **result)
            jobs_connection().on_commit(send, robust=True)
        elif compensations is not None:
            why = ""
            try:
                if compensate(id_, compensations):
                    continue
            except REFUSALS as refusal:  # not the end of the step, which would be lost
                why = note_refused(id_, name, compensations, refusal)
            not_undone.setdefault(why, []).append(id_)
    for why, failed in not_undone.items():
        count_ends(dict.fromkeys(failed, 0), undo=False, note=why)
