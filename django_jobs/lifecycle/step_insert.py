"""Insert the steps of a run, and what each waits for, by COPY; parts of statements to open them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..domain.gates import Gates
from ..domain.workflows import If, When
from ..models.database import fetch
from .bulk_insert import IDS, copy, copy_rows, fields_of
from .job_columns import (
    AT_ITS_RUN_AT,
    AT_THE_GATES,
    COMMON_COLUMNS,
    GATE_COLUMNS,
    NOW,
    OPTIONAL,
    NewJobs,
    gate_values,
)
from .notifying import BLOCKED, notify_after_commit

ALLOCATE = f"""
WITH {IDS}
SELECT ARRAY(SELECT nextval(ids.sequence) FROM generate_series(1, %(count)s)),
    {NOW}, date_part('epoch', {NOW})
FROM ids
"""

OF_A_STEP = (
    *("status", "rank", "available_at", "expires_at", "created_at"),
    *("workflow_run_id", "step", "prerequisites"),
)
COPY_STEPS = copy("id", "payload", *COMMON_COLUMNS, *GATE_COLUMNS, *OF_A_STEP)
COPY_DEPENDENCIES = copy(
    *("workflow_run_id", "parent_id", "child_id", '"when"', "takes", "condition"),
    table="django_jobs_dependency",
)

Taken = tuple[int, int, Sequence[str]]
"""The place of a step, one that has ended, and the arguments of the first that get its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStep:
    """A step to insert. ``payload`` is JSON text.

    ``after`` has the places of the steps that it waits for, among those that are inserted with it,
    each with how that one has to end. ``takes`` has, for some of these, the arguments that get
    their results. Besides it waits for ``others`` that are added later. One that is ``optional`` is
    skipped where it would be dead.
    """

    name: str
    new: NewJobs
    payload: str
    gates: Gates | None = None
    after: Mapping[int, When | If] = field(default_factory=dict)
    takes: Mapping[int, Sequence[str]] = field(default_factory=dict)
    others: int = 0
    optional: bool = False

    @property
    def prerequisites(self) -> int:
        return len(self.after) + self.others

    @property
    def takes_room(self) -> bool:
        """Whether it is inserted as ready, or blocked at its gates, once its ``run_at`` is over."""
        return not (self.prerequisites or self.new.is_delayed)


def insert_steps(run: int, steps: Sequence[NewStep], taken: Iterable[Taken] = ()) -> list[int]:
    """Insert the steps of a run, in the caller's transaction; return their ids in order. Those
    that wait for nothing start. Takes three round trips.

    ``taken`` has what they take of steps that have ended.
    """
    ((ids, now, epoch),) = fetch(ALLOCATE, {"count": len(steps)})
    common: dict[tuple[int, bool, bool], str] = {}
    rows: list[str] = []
    hints: set[str] = set()
    for id_, step in zip(ids, steps, strict=True):
        new, prerequisites = step.new, step.prerequisites
        key = id(new), bool(prerequisites), step.optional
        if key not in common:
            marks = {AT_ITS_RUN_AT: prerequisites and new.run_at, OPTIONAL: step.optional}
            common[key] = fields_of(_marked(new.columns, marks).values())
        due = new.run_at or now + timedelta(seconds=new.delay)
        status = "waiting" if prerequisites else _first_status(due > now, step.gates)
        rank = epoch + (due - now).total_seconds() - new.priority * new.weight
        expires_at = None if new.max_age is None else now + timedelta(seconds=new.max_age)
        own = status, rank, due, expires_at, now, run, step.name, prerequisites or None
        rows.append(
            f"{fields_of((id_, step.payload))}\t{common[key]}"
            f"\t{fields_of((*gate_values(step.gates).values(), *own))}\n"
        )
        if status in ("ready", "blocked"):
            hints.add(new.queue if status == "ready" else BLOCKED + new.queue)
    copy_rows(COPY_STEPS, rows)
    copy_rows(COPY_DEPENDENCIES, _dependencies(run, ids, steps, taken))
    for hint in hints:
        notify_after_commit(hint)
    return list(ids)


def ends_among(steps: Sequence[NewStep]) -> int:
    """How many of the steps no other one waits for."""
    return len(steps) - len({parent for step in steps for parent in step.after})


def first_among(steps: Sequence[NewStep]) -> list[tuple[NewJobs, list[Gates | None]]]:
    """The gates of the steps that take room at once in each of their queues, with the request of
    one, in the order of the queues' names."""
    first = [step for step in steps if step.takes_room]
    requests = {step.new.queue: step.new for step in first}
    return [
        (requests[queue], [step.gates for step in first if step.new.queue == queue])
        for queue in sorted(requests)
    ]


def _marked(columns: Mapping[str, Any], marks: Mapping[str, object]) -> Mapping[str, Any]:
    """The columns of a step with those headers that are true of it."""
    if not any(marks.values()):
        return columns
    headers = json.loads(columns["headers"]) | {
        name: True for name, is_so in marks.items() if is_so
    }
    return {**columns, "headers": json.dumps(headers)}


def _first_status(is_later: bool, gates: Gates | None) -> str:
    if is_later:
        return "scheduled"
    return "ready" if gates is None else "blocked"


def _dependencies(
    run: int, ids: Sequence[int], steps: Sequence[NewStep], taken: Iterable[Taken]
) -> Iterable[str]:
    for place, parent, arguments in taken:
        values = run, parent, ids[place], When.FINISHED, json.dumps(arguments), None
        yield f"{fields_of(values)}\n"
    for id_, step in zip(ids, steps, strict=True):
        for parent, when in step.after.items():
            takes = step.takes.get(parent)
            taken_by = json.dumps(list(takes)) if takes else None
            condition = json.dumps(when.document) if isinstance(when, If) else None
            word = When.SUCCEEDED if isinstance(when, If) else when
            yield f"{fields_of((run, ids[parent], id_, word, taken_by, condition))}\n"


OPENS_AT = f"""CASE WHEN jsonb_exists(job.headers, '{AT_ITS_RUN_AT}')
                                 THEN greatest(clock.now, job.available_at)
                                 ELSE clock.now + (job.available_at - job.created_at) END"""
"""The due time of a waiting ``job`` that opens at ``clock.now``. How far it is delayed follows from
the times that it was inserted with, and counts from its opening."""


def opening_at(left: str) -> str:
    """The SET that opens a waiting ``job`` if ``left``, an expression, is 0, at ``clock.now``."""
    return f"""(prerequisites, status, available_at, rank, expires_at) = (
        SELECT step.left,
            CASE WHEN step.left > 0 THEN 'waiting'
                 WHEN step.opens_at > clock.now THEN 'scheduled'
                 ELSE {AT_THE_GATES} END,
            CASE WHEN step.left > 0 THEN job.available_at ELSE step.opens_at END,
            CASE WHEN step.left > 0 THEN job.rank
                 ELSE job.rank + date_part('epoch', step.opens_at - job.available_at) END,
            CASE WHEN step.left > 0 THEN job.expires_at
                 ELSE clock.now + (job.expires_at - job.created_at) END
        FROM (SELECT {left} AS left, {OPENS_AT} AS opens_at OFFSET 0) AS step)"""


def edge_fate(result: str) -> str:
    """What the end of a parent, its ``fate``, means for one that waits with this ``condition``:
    after a success with another ``result``, an expression, that is not needed."""
    return f"""CASE WHEN fate = 'succeeded' AND condition IS NOT NULL AND NOT coalesce((
        SELECT bool_and(CASE rule.key
            WHEN 'equals' THEN one.found = rule.value
            WHEN 'not_equals' THEN one.found <> rule.value
            WHEN 'at_least' THEN jsonb_typeof(one.found) = 'number' AND one.found >= rule.value
            WHEN 'at_most' THEN jsonb_typeof(one.found) = 'number' AND one.found <= rule.value
            ELSE one.found IN (SELECT jsonb_array_elements(rule.value)) END)
        FROM jsonb_each(condition - 'path') AS rule,
            (SELECT {result} #> string_to_array(condition ->> 'path', '.') AS found) AS one
    ), false) THEN 'unneeded' ELSE fate END"""


STORED_RESULT = "CASE WHEN job.reason = '' THEN job.result END"
"""The result of a ``job`` that succeeded, unless it is a note: see ``NOT_STORED``."""

ASKED = f"""asked AS MATERIALIZED (
    SELECT job.id, {STORED_RESULT} AS result FROM django_jobs_job AS job
    WHERE job.id = ANY(ARRAY(SELECT parent FROM given WHERE condition IS NOT NULL))
)"""
"""A part of a statement: the results on which edges ``given`` depend, for ``EDGE_FATE``."""
EDGE_FATE = edge_fate("(SELECT result FROM asked WHERE id = parent)")


def value_for_job(values: str, ids: str) -> str:
    """Of the array ``values``, what belongs to the id of ``job`` in the sorted array ``ids``.

    A join would read one side from end to end for each row of the other, where the planner believes
    that there is one: statistics are older than the steps of a run that has just started. This is a
    binary search, and the rows are found by an array of ids, which is an index search.
    """
    return f"({values})[width_bucket(job.id, ({ids}))]"
