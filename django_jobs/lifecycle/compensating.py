"""Undo the steps that succeeded of a run that failed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ..domain.gates import parse
from ..domain.workflows import When
from ..models.database import execute, fetch
from .job_columns import NewJobs
from .step_insert import NewStep, insert_steps

NOTHING: Mapping[str, Sequence[str]] = {}

# The last one first, as they ended. All partitions are read: a step may have ended days ago.
SUCCEEDED = """
SELECT id, step FROM django_jobs_job
WHERE workflow_run_id = %(run)s AND step = ANY(%(steps)s::text[]) AND status = 'succeeded'
ORDER BY finished_at DESC, id DESC
"""
BEGUN = """
UPDATE django_jobs_workflowrun
SET compensations = jsonb_build_object('begun', %(steps)s::text[]), ends_left = 1
WHERE id = %(run)s
"""


def as_json(
    compensations: Mapping[str, NewStep], takes: Mapping[str, Sequence[str]] = NOTHING
) -> str | None:
    """The compensations of a run, by the step that each undoes, as they are stored with it.
    ``takes`` has the arguments that get the result of the step."""
    if not compensations:
        return None
    return json.dumps(
        [
            {
                "undoes": step,
                "name": one.name,
                "new": {name: value for name, value in asdict(one.new).items() if name != "run_at"},
                "payload": one.payload,
                "gates": None if one.gates is None else one.gates.text,
                "takes": list(takes.get(step, ())),
            }
            for step, one in compensations.items()
        ]
    )


def begun(compensations: str | None) -> list[str] | None:
    """The names of the steps that undo others, if they were inserted."""
    stored = json.loads(compensations or "[]")
    return list(stored["begun"]) if isinstance(stored, dict) else None


def compensate(run: int, compensations: str) -> bool:
    """Insert the jobs that undo what succeeded, one after the other; False if there are none.

    ``compensations`` is what :func:`as_json` returned. A compensation that fails does not stop the
    others. The run is locked.
    """
    if begun(compensations) is not None:
        return False
    by_step = {one["undoes"]: one for one in json.loads(compensations)}
    rows = fetch(SUCCEEDED, {"run": run, "steps": list(by_step)})
    if not rows:
        return False
    steps = [
        _step(by_step[name], {place - 1: When.FINISHED} if place else {})
        for place, (_, name) in enumerate(rows)
    ]
    taken = {
        place: (undone, by_step[name]["takes"])
        for place, (undone, name) in enumerate(rows)
        if by_step[name]["takes"]
    }
    insert_steps(run, steps, taken)
    execute(BEGUN, {"run": run, "steps": [step.name for step in steps]})
    return True


def _step(stored: Mapping[str, Any], after: Mapping[int, When]) -> NewStep:
    known = {field.name for field in fields(NewJobs)}
    return NewStep(
        name=stored["name"],
        new=NewJobs(**{name: value for name, value in stored["new"].items() if name in known}),
        payload=stored["payload"],
        gates=None if stored["gates"] is None else parse(stored["gates"]),
        after=after,
    )
