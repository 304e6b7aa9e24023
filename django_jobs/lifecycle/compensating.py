"""Undo the steps that succeeded of a run that failed."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from django.db import transaction

from ..domain.errors import ErrorReport
from ..domain.gates import parse
from ..domain.workflows import When
from ..models.database import execute, fetch, jobs_connection
from .job_columns import NewJobs
from .notifying import emit_after_commit
from .step_insert import NewStep, insert_steps

NOTHING: Mapping[str, Mapping[str, Sequence[str]]] = {}

# The last one first, as they ended. All partitions are read: a step may have ended days ago. A name
# belongs to the step that was declared. A handler may have spawned others of that name, which have
# greater ids.
DECLARED = """
SELECT id, step, status = 'succeeded' FROM (
    SELECT DISTINCT ON (step) id, step, status, finished_at FROM django_jobs_job
    WHERE workflow_run_id = %(run)s AND step = ANY(%(steps)s::text[])
    ORDER BY step, id
) AS declared
ORDER BY finished_at DESC, id DESC
"""
# When they begin, no other step is left that could spawn. So what has the id of the first or a
# greater one undoes something: they, and the steps that they spawn.
BEGUN = """
UPDATE django_jobs_workflowrun
SET compensations = jsonb_build_object('begun', %(first)s::bigint), ends_left = 1
WHERE id = %(run)s
"""

# One that a person cancelled, alone or with the run, has undone nothing either. All partitions are
# read for these. What a person skips was undone by hand.
HAS_NOT_UNDONE = """job.id >= (run.compensations ->> 'begun')::bigint
    AND (job.status = 'dead' OR job.status = 'cancelled' AND job.skipped IS NULL)"""
NOTE_FAILED = f"""
WITH failed AS MATERIALIZED (
    SELECT job.id, job.step
    FROM django_jobs_job AS job JOIN django_jobs_workflowrun AS run ON run.id = job.workflow_run_id
    WHERE run.id = %(run)s AND {HAS_NOT_UNDONE}
)
UPDATE django_jobs_workflowrun
SET compensations = compensations
    || jsonb_build_object('failed', ARRAY(SELECT step FROM failed ORDER BY id))
WHERE id = %(run)s AND EXISTS (SELECT 1 FROM failed)
RETURNING name, ARRAY(SELECT step FROM failed ORDER BY id)
"""
FAILED = """
SELECT id, name, finished_at,
    ARRAY(SELECT jsonb_array_elements_text(compensations -> 'failed')) AS steps
FROM django_jobs_workflowrun
WHERE compensations ? 'failed'
ORDER BY id DESC
LIMIT %(most)s
"""

NOT_STORED = ("run_at", "max_waiting")
"""What a job that undoes a step has not: it is due at once, and made without a check of limits."""
MOST_NAMED = 10
"""Compensations that an event names."""


def as_json(
    compensations: Mapping[str, NewStep], takes: Mapping[str, Mapping[str, Sequence[str]]] = NOTHING
) -> str | None:
    """The compensations of a run, by the step that each undoes, as they are stored with it.
    ``takes`` has of each, by the names of steps, the arguments that get their results."""
    if not compensations:
        return None
    return json.dumps(
        [
            {
                "undoes": step,
                "name": one.name,
                "new": {
                    name: value for name, value in asdict(one.new).items() if name not in NOT_STORED
                },
                "payload": one.payload,
                "gates": None if one.gates is None else one.gates.text,
                "takes": takes.get(step, {}),
            }
            for step, one in compensations.items()
        ]
    )


def begun(compensations: str | None) -> int | None:
    """The id of the first step that undoes another, if they were inserted."""
    stored = json.loads(compensations or "[]")
    return int(stored["begun"]) if isinstance(stored, dict) else None


def compensate(run: int, compensations: str) -> bool:
    """Insert the jobs that undo what succeeded, one after the other; False if there are none.

    ``compensations`` is what :func:`as_json` returned. A compensation that fails does not stop the
    others. The run is locked. If one of ``REFUSALS`` is raised, nothing was written.
    """
    if begun(compensations) is not None:
        return False
    by_step = {one["undoes"]: one for one in json.loads(compensations)}
    with transaction.atomic(using=jobs_connection().alias):
        return _insert(run, by_step)


def _insert(run: int, by_step: Mapping[str, Any]) -> bool:
    sources = {source for one in by_step.values() for source in one["takes"]}
    rows = fetch(DECLARED, {"run": run, "steps": sorted(sources.union(by_step))})
    ids = {name: id_ for id_, name, _ in rows}
    undone = [by_step[name] for _, name, succeeded in rows if succeeded and name in by_step]
    if not undone:
        return False
    steps = [
        _step(one, {place - 1: When.FINISHED} if place else {}) for place, one in enumerate(undone)
    ]
    taken = [
        (place, ids[source], arguments)
        for place, one in enumerate(undone)
        for source, arguments in one["takes"].items()
    ]
    execute(BEGUN, {"run": run, "first": insert_steps(run, steps, taken)[0]})
    return True


def note_refused(run: int, workflow: str, compensations: str, refusal: Exception) -> str:
    """Send the event ``compensation_failed`` after the commit, because :func:`compensate` raised
    this. Returns what the reason of the run says of it."""
    _note(run, workflow, [one["name"] for one in json.loads(compensations)])
    return f"; what undoes it could not be written: {ErrorReport.of(refusal).summary}"


def _note(run: int, workflow: str, steps: Sequence[str]) -> None:
    named = ", ".join(steps[:MOST_NAMED]) + (", ..." if len(steps) > MOST_NAMED else "")
    emit_after_commit("compensation_failed", logging.ERROR, run=run, workflow=workflow, steps=named)


def note_failed(run: int) -> None:
    """Store with a run that has just ended which of its compensations failed, and send the event
    ``compensation_failed`` after the commit, if there are any. The run is locked."""
    for name, steps in fetch(NOTE_FAILED, {"run": run}):
        _note(run, name, steps)


def _step(stored: Mapping[str, Any], after: Mapping[int, When]) -> NewStep:
    known = {field.name for field in fields(NewJobs)}
    return NewStep(
        name=stored["name"],
        new=NewJobs(**{name: value for name, value in stored["new"].items() if name in known}),
        payload=stored["payload"],
        gates=None if stored["gates"] is None else parse(stored["gates"]),
        after=after,
    )
