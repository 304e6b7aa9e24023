"""Whether the rows of workflows agree with each other: recomputed by the rules, from all rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from django_jobs.domain.payload import is_same
from django_jobs.domain.states import FINAL, JobState
from django_jobs.domain.workflows import (
    END,
    Fate,
    Skipped,
    When,
    WorkflowState,
    fate_of,
    is_met,
)

STEPS = """
SELECT job.id, job.workflow_run_id, job.step, job.status, job.skipped, job.prerequisites,
    job.replays, job.finished_at, run.first, run.last, run.ended, job.job_type,
    CASE WHEN job.reason = '' THEN job.result::text END
FROM django_jobs_job AS job LEFT JOIN (
    SELECT job_id, min(claimed_at) AS first, max(claimed_at) AS last,
        (array_agg(outcome ORDER BY attempt DESC))[1] AS ended
    FROM django_jobs_run GROUP BY job_id
) AS run ON run.job_id = job.id
WHERE job.workflow_run_id IS NOT NULL
ORDER BY job.id
"""
EDGES = """
SELECT child_id, parent_id, "when", condition::text FROM django_jobs_dependency ORDER BY 1, 2
"""
RUNS = "SELECT id, status, cancel_requested_at FROM django_jobs_workflowrun ORDER BY id"


class Step(NamedTuple):
    """A row of :data:`STEPS`."""

    id: int
    run: int
    name: str
    status: JobState
    skipped: Skipped | None
    prerequisites: int | None
    replays: int
    finished_at: Any
    first_claimed_at: Any
    last_claimed_at: Any
    last_outcome: str | None
    job_type: str
    result: str | None

    @property
    def is_over(self) -> bool:
        return self.status in FINAL

    @property
    def is_skipped(self) -> bool:
        return self.status == JobState.CANCELLED and self.skipped is not None

    @property
    def has_skipped_itself(self) -> bool:
        return self.is_skipped and self.last_outcome == "cancelled"


class Edge(NamedTuple):
    """What a step waits for."""

    parent: Step
    when: When
    condition: str | None

    @property
    def is_met(self) -> bool:
        fate = fate_of(self.parent.status, self.parent.skipped)
        if fate == Fate.SUCCEEDED and self.condition is not None:
            result = self.parent.result
            return result is not None and _holds(json.loads(self.condition), json.loads(result))
        return is_met(self.when, fate)


def _holds(condition: dict[str, Any], value: Any) -> bool:
    for key in condition["path"].split(".") if condition["path"] else ():
        if isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return False
    return all(_is(word, value, wanted) for word, wanted in condition.items() if word != "path")


def _is(word: str, value: Any, wanted: Any) -> bool:
    match word:
        case "equals":
            return is_same(value, wanted)
        case "not_equals":
            return not is_same(value, wanted)
        case "in":
            return any(is_same(value, one) for one in wanted)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(value >= wanted if word == "at_least" else value <= wanted)


def _reason_after(parent: Step) -> Skipped:
    """Why the steps are skipped that cannot start after this one."""
    failed = fate_of(parent.status, parent.skipped) == Fate.FAILED
    return Skipped.FAILED if failed else Skipped.UNNEEDED


def contradictions(fetch: Callable[[str], Sequence[tuple[Any, ...]]]) -> list[str]:
    """What the rows say that does not follow from the others, as sentences. Read it while nothing
    changes them."""
    steps = {
        id_: Step(id_, run, name, JobState(status), Skipped(skipped) if skipped else None, *others)
        for id_, run, name, status, skipped, *others in fetch(STEPS)
    }
    edges: dict[int, list[Edge]] = defaultdict(list)
    found = []
    for child, parent, when, condition in fetch(EDGES):
        if parent in steps and child in steps:
            edges[child].append(Edge(steps[parent], When(when), condition))
        else:
            found.append(f"step #{child} waits for step #{parent}, and one of them is gone")
    by_run: dict[int, list[Step]] = defaultdict(list)
    for step in steps.values():
        by_run[step.run].append(step)
    for run, status, cancel_requested_at in fetch(RUNS):
        again = _started_again(by_run[run], edges)
        for step in by_run[run]:
            found += [f"{_of(step)} {what}" for what in _wrong(step, edges[step.id], again)]
        names = [step.name for step in by_run[run]]
        if twice := {name for name in names if names.count(name) > 1}:
            found.append(f"run {run} has steps twice: {sorted(twice)}")
        if (right := _status(by_run[run], cancel_requested_at is not None)) != status:
            found.append(f"run {run} is {status} and not {right}")
    return found


def _started_again(steps: list[Step], edges: dict[int, list[Edge]]) -> set[int]:
    """The steps that a person started again or skipped, and all that come after one of them."""
    again: set[int] = set()
    found = {step.id for step in steps if step.replays or step.skipped == Skipped.PASSED}
    while found:
        again |= found
        found = {
            step.id
            for step in steps
            if step.id not in again and any(edge.parent.id in again for edge in edges[step.id])
        }
    return again


def _wrong(step: Step, edges: list[Edge], again: set[int]) -> Iterator[str]:
    """``again``: what a person started again or skipped, and what comes after it. What had begun
    or ended by then stays as it was."""
    if step.skipped == Skipped.PASSED:
        return
    ended = [(edge.parent, edge.is_met) for edge in edges if edge.parent.is_over]
    if step.job_type == END and step.is_over and not again:
        yield from _wrong_end(step, [parent for parent, _ in ended])
    broken = [parent for parent, is_right in ended if not is_right]
    if step.is_skipped:
        reasons = {_reason_after(parent) for parent in broken}
        if step.has_skipped_itself:
            return
        if not broken:
            yield f"was skipped as {step.skipped}, and nothing before it is a reason"
        elif step.skipped not in reasons:
            yield f"is {step.status} ({step.skipped}) and not skipped as {_either(reasons)}"
        return
    if again and step.status != JobState.WAITING:
        broken = [parent for parent in broken if parent.id not in again]
    if again and step.is_over:
        ended = [one for one in ended if one[0].finished_at < step.finished_at]
        broken = [parent for parent in broken if parent.finished_at < step.finished_at]
    met = [parent for parent, is_right in ended if is_right]
    left = len(edges) - len(met)
    if broken:
        if step.status != JobState.CANCELLED:
            reasons = {_reason_after(parent) for parent in broken}
            yield f"is {step.status} ({step.skipped}) and not skipped as {_either(reasons)}"
        return
    if left and not again and step.status not in (JobState.WAITING, JobState.CANCELLED):
        yield f"is {step.status}, and {left} steps before it have not ended"
    if step.status == JobState.WAITING and (not left or step.prerequisites != left):
        yield f"waits for {step.prerequisites} steps, and {left} before it have not ended"
    claimed_at = step.last_claimed_at if again else step.first_claimed_at
    for parent in met:
        if claimed_at is not None and parent.id not in again and claimed_at < parent.finished_at:
            yield f"was claimed before {_of(parent)} had ended"


def _wrong_end(step: Step, parents: list[Step]) -> Iterator[str]:
    """Of the end of a workflow that is a step, which no person has cancelled."""
    fates = {fate_of(parent.status, parent.skipped) for parent in parents}
    right = min(fates, key=(Fate.FAILED, Fate.SUCCEEDED, Fate.UNNEEDED).index)
    cancelled = step.status == JobState.CANCELLED and step.skipped is None
    if not cancelled and fate_of(step.status, step.skipped) != right:
        yield f"is {step.status} ({step.skipped}), and the steps before it are {sorted(fates)}"


def _either(reasons: set[Skipped]) -> str:
    return " or ".join(sorted(reasons))


def _status(steps: list[Step], cancel_requested: bool) -> WorkflowState:
    if not all(step.is_over for step in steps):
        return WorkflowState.RUNNING
    if cancel_requested:
        return WorkflowState.CANCELLED
    if any(step.status == JobState.DEAD for step in steps):
        return WorkflowState.FAILED
    if any(step.status == JobState.CANCELLED and step.skipped is None for step in steps):
        return WorkflowState.CANCELLED
    return WorkflowState.SUCCEEDED


def _of(step: Step) -> str:
    return f"step {step.name!r} (#{step.id} of run {step.run})"
