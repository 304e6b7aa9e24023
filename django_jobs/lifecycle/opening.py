"""waiting -> ready or cancelled, of the steps of workflows; and the ends of their runs.

Each door that ends a step calls :func:`open_next` in the same transaction. What it locks at once
comes in one order: steps before runs, each by its id. A cascade of skipped steps locks one level
of the graph after the other, so that two sessions may wait for each other: then one is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ..domain.workflows import Fate, Skipped
from ..models.database import fetch, jobs_connection
from ..signals import workflow_finished
from .compensating import compensate
from .job_columns import AT_THE_GATES
from .notifying import BLOCKED, notify_after_commit


def opening_at(left: str) -> str:
    """The SET of a statement that opens a waiting ``job`` if ``left``, an expression, is 0, at
    ``clock.now``. How far it is delayed follows from the times that it was inserted with, and
    counts from its opening."""
    return f"""prerequisites = {left},
        status = CASE WHEN {left} > 0 THEN 'waiting'
                      WHEN job.available_at > job.created_at THEN 'scheduled'
                      ELSE {AT_THE_GATES} END,
        available_at = CASE WHEN {left} > 0 THEN job.available_at
                            ELSE clock.now + (job.available_at - job.created_at) END,
        rank = CASE WHEN {left} > 0 THEN job.rank
                    ELSE job.rank + date_part('epoch', clock.now - job.created_at) END,
        expires_at = CASE WHEN {left} > 0 THEN job.expires_at
                          ELSE clock.now + (job.expires_at - job.created_at) END"""


# An open step that waits for a signal has no prerequisites left. A step that another session skips
# meanwhile has moved to the history: see repeat_if_moved.
COUNT_DOWN = f"""
WITH ended AS MATERIALIZED (
    SELECT id, fate FROM unnest(%(ids)s::bigint[], %(fates)s::text[]) AS step (id, fate)
), edge AS MATERIALIZED (
    SELECT ended.id AS parent, ended.fate, dependency.child_id AS child,
        dependency."when" IN ('finished', ended.fate) AS met
    FROM ended, LATERAL (
        SELECT child_id, "when" FROM django_jobs_dependency
        WHERE parent_id = ended.id OFFSET 0) AS dependency
), waiting AS MATERIALIZED (
    SELECT job.id FROM django_jobs_job_live AS job
    WHERE job.id = ANY(ARRAY(SELECT child FROM edge)) AND job.status = 'waiting'
      AND job.prerequisites > 0
    ORDER BY job.id
    FOR NO KEY UPDATE
), child AS MATERIALIZED (
    SELECT child AS id, count(*) AS met FROM edge
    WHERE child IN (SELECT id FROM waiting)
    GROUP BY child HAVING bool_and(met)
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), opened AS (
    UPDATE django_jobs_job_live AS job
    SET {opening_at("job.prerequisites - child.met")}
    FROM (SELECT id, met FROM child OFFSET 0) AS child, clock
    WHERE job.id = child.id AND job.status = 'waiting'
    RETURNING job.queue, job.status
)
SELECT DISTINCT 'opened', NULL::bigint, queue, status, NULL::bigint FROM opened
WHERE status IN ('ready', 'blocked')
UNION ALL
SELECT 'broken', child, NULL,
    CASE WHEN bool_or(fate = 'failed' AND NOT met) THEN 'failed' ELSE 'unneeded' END,
    coalesce(min(parent) FILTER (WHERE fate = 'failed' AND NOT met),
             min(parent) FILTER (WHERE NOT met))
FROM edge WHERE child IN (SELECT id FROM waiting)
GROUP BY child HAVING NOT bool_and(met)
UNION ALL
SELECT 'last', ended.id, NULL,
    CASE WHEN ended.id IN (SELECT parent FROM edge) THEN 'waited for' END, NULL
FROM ended
WHERE ended.id NOT IN (
    SELECT parent FROM edge WHERE child IN (SELECT id FROM waiting))
"""

SKIP = """
UPDATE django_jobs_job AS job
SET status = 'cancelled', finished_at = clock_timestamp(), skipped = input.skipped,
    reason = 'skipped: ' || input.because
FROM (
    SELECT step.id, step.skipped, parent.step || CASE parent.status
            WHEN 'succeeded' THEN ' succeeded' WHEN 'dead' THEN ' failed'
            ELSE CASE WHEN parent.skipped IS NULL THEN ' was cancelled' ELSE ' was skipped' END
        END AS because
    FROM unnest(%(ids)s::bigint[], %(skipped)s::text[], %(parents)s::bigint[])
        AS step (id, skipped, parent)
    JOIN django_jobs_job AS parent ON parent.id = step.parent
    OFFSET 0
) AS input
WHERE job.id = input.id AND job.status = 'waiting'
RETURNING job.id, job.workflow_run_id, job.skipped
"""

# Locks the runs, so that of two settles that end the last steps the second sees the first.
COUNT_ENDS = """
WITH input AS MATERIALIZED (
    SELECT * FROM unnest(%(runs)s::bigint[], %(ends)s::integer[], %(reasons)s::text[])
        AS ended (id, ends, reason)
), locked AS MATERIALIZED (
    SELECT run.id FROM django_jobs_workflowrun AS run
    WHERE run.id = ANY(%(runs)s::bigint[])
    ORDER BY run.id
    FOR NO KEY UPDATE
)
UPDATE django_jobs_workflowrun AS run
SET ends_left = greatest(run.ends_left - input.ends, 0),
    reason = CASE WHEN run.reason = '' THEN input.reason ELSE run.reason END
FROM input
WHERE run.id = input.id AND run.id = ANY(ARRAY(SELECT id FROM locked))
RETURNING run.id, run.ends_left
"""

# Dead steps are in the partition of the live ones. A cancelled one has left its reason. What a
# person cancels is not undone.
OVER = """
SELECT run.id, CASE WHEN run.cancel_requested_at IS NULL THEN run.compensations END, ARRAY(
    SELECT job.step FROM django_jobs_job_live AS job
    WHERE job.workflow_run_id = run.id AND job.status = 'dead'
    ORDER BY job.id LIMIT 4)
FROM django_jobs_workflowrun AS run
WHERE run.id = ANY(%(runs)s::bigint[]) AND run.status = 'running' AND NOT EXISTS (
    SELECT 1 FROM django_jobs_job_live AS job
    WHERE job.workflow_run_id = run.id AND job.status <> 'dead')
"""
END_RUNS = """
UPDATE django_jobs_workflowrun AS run
SET finished_at = clock_timestamp(),
    status = CASE WHEN run.cancel_requested_at IS NOT NULL THEN 'cancelled'
                  WHEN input.failed <> '' THEN 'failed'
                  WHEN run.reason <> '' THEN 'cancelled' ELSE 'succeeded' END,
    reason = CASE WHEN run.cancel_requested_at IS NULL AND input.failed <> ''
                  THEN input.failed ELSE run.reason END
FROM (SELECT * FROM unnest(%(runs)s::bigint[], %(failed)s::text[]) AS over (id, failed) OFFSET 0)
    AS input
WHERE run.id = input.id AND run.status = 'running'
RETURNING run.id, run.name, run.status, run.reason
"""


MOST_NAMED = 3
"""Failed steps that the reason of a run names."""


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
        """What to notify."""
        return self.queues | {BLOCKED + queue for queue in self.blocked}


def open_next(ended: Sequence[EndedStep]) -> Opened:
    """Open or skip the steps that come after those that have just ended, and end the runs that
    have no step left.

    Call it in the transaction that ended them. Each step that is skipped skips those after it, a
    statement or two for each level of the graph.
    """
    opened = Opened()
    ends: Counter[int] = Counter()
    reasons = {step.run: "a step was cancelled" for step in ended if step.cancelled}
    level = list(ended)
    while level:
        runs = {step.id: step.run for step in level}
        broken: list[tuple[int, str, int]] = []
        rows = fetch(
            COUNT_DOWN,
            {"ids": [step.id for step in level], "fates": [step.fate.value for step in level]},
        )
        for what, id_, queue, word, parent in rows:
            match what:
                case "opened":
                    (opened.queues if word == "ready" else opened.blocked).add(queue)
                case "broken":
                    broken.append((id_, word, parent))
                case "last":
                    ends[runs[id_]] += word is None
        level = _skip(broken) if broken else []
    if ends or reasons:
        count_ends(ends, reasons)
    return opened


def skip_and_open(broken: Sequence[tuple[int, str, int]]) -> Opened:
    """:func:`open_next` after skipping waiting steps that can never run: each with why, and the
    step that is the cause."""
    return open_next(_skip(broken)) if broken else Opened()


def follow_cancelled(jobs: Iterable[tuple[int, int | None]]) -> None:
    """:func:`open_next` after jobs, each with its run if it is a step, were cancelled. Notifies."""
    ended = [EndedStep(id_, run, Fate.FAILED, True) for id_, run in jobs if run is not None]
    if ended:
        for hint in open_next(ended).hints:
            notify_after_commit(hint)


def _skip(steps: Sequence[tuple[int, str, int]]) -> list[EndedStep]:
    ids, skipped, parents = map(list, zip(*steps, strict=True))
    rows = fetch(SKIP, {"ids": ids, "skipped": skipped, "parents": parents})
    return [
        EndedStep(id_, run, Fate.FAILED if why == Skipped.FAILED else Fate.UNNEEDED)
        for id_, run, why in rows
    ]


def count_ends(ends: Counter[int], reasons: dict[int, str]) -> None:
    """Count, by run, the steps that ended and that no other one waits for, and end the runs without
    a live step. ``reasons`` are kept for runs without one."""
    runs = sorted(ends.keys() | reasons.keys())
    rows = fetch(
        COUNT_ENDS,
        {
            "runs": runs,
            "ends": [ends[run] for run in runs],
            "reasons": [reasons.get(run, "") for run in runs],
        },
    )
    if over := [run for run, left in rows if left == 0]:
        end_runs(over)


def end_runs(runs: Iterable[int]) -> None:
    """End those of these runs that have no live step left. Their rows are locked.

    A run that failed first undoes what succeeded, if it has compensations for it.
    """
    failed: dict[int, str] = {}
    for run, compensations, dead in fetch(OVER, {"runs": list(runs)}):
        if not (dead and compensations and compensate(run, compensations)):
            more = ", ..." if len(dead) > MOST_NAMED else ""
            failed[run] = f"{', '.join(dead[:MOST_NAMED])}{more} failed" if dead else ""
    ended = {"runs": list(failed), "failed": list(failed.values())}
    for id_, name, status, reason in fetch(END_RUNS, ended) if failed else ():
        send = partial(
            workflow_finished.send_robust, name, run_id=id_, status=status, reason=reason
        )
        jobs_connection().on_commit(send, robust=True)
