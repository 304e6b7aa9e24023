"""What became of the runs of workflows, by their rows and by what operators were answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.workflow_account import contradictions

from .partitions import Database

# Those that a spawn makes have no definition and no key. Those that a job started have the job's.
RUNS = """
SELECT idempotency_key FROM django_jobs_workflowrun
WHERE definition_id IS NOT NULL AND idempotency_key NOT LIKE 'job:%'
"""

ROWS = {
    "a run whose steps are not those of its definition, what it spawned and what undoes others": """
        SELECT run.id, run.name, array_agg(job.step ORDER BY job.id)
        FROM django_jobs_workflowrun AS run
        JOIN django_jobs_job AS job ON job.workflow_run_id = run.id
        LEFT JOIN django_jobs_workflowdefinition AS definition ON definition.id = run.definition_id
        GROUP BY run.id, run.name, definition.graph
        HAVING ARRAY(
            SELECT one ->> 'name' FROM jsonb_array_elements(definition.graph -> 'steps') AS one
            ORDER BY 1) <> array_agg(job.step::text ORDER BY job.step) FILTER (
                WHERE job.step !~ '^(part[[]|undo )' AND job.job_type <> 'chaos.joins')
            AND run.definition_id IS NOT NULL""",
    "a job that has started its run otherwise than once": """
        SELECT job.id, job.status, count(run.id) FROM django_jobs_job AS job
        FULL JOIN (
            SELECT id, substr(idempotency_key, 5) AS job FROM django_jobs_workflowrun
            WHERE idempotency_key LIKE 'job:%'
        ) AS run ON run.job = job.id::text
        WHERE job.job_type = 'chaos.diamond' OR run.id IS NOT NULL
        GROUP BY job.id, job.status
        HAVING count(run.id) <> 1 OR job.status <> 'succeeded'""",
    "a fan-out that is not there once": """
        SELECT splits.id, splits.status, splits.payload, count(part.id), count(DISTINCT part.step)
        FROM django_jobs_job AS splits
        LEFT JOIN django_jobs_job AS part
            ON part.workflow_run_id = splits.workflow_run_id AND part.step LIKE 'part[%'
        WHERE splits.job_type = 'chaos.splits'
        GROUP BY splits.id, splits.status, splits.payload
        HAVING count(part.id) <> count(DISTINCT part.step)
            OR count(part.id) > (splits.payload ->> 'parts')::int
            OR splits.status = 'succeeded'
               AND count(part.id) < (splits.payload ->> 'parts')::int""",
    "a result that is not that of the steps before": """
        SELECT job.id, job.step, job.result, taken.sum
        FROM django_jobs_job AS job CROSS JOIN LATERAL (
            SELECT 1 + coalesce(sum((parent.result #>> '{}')::int), 0) AS sum
            FROM django_jobs_dependency AS edge
            JOIN django_jobs_job AS parent ON parent.id = edge.parent_id
            WHERE edge.child_id = job.id
              AND (edge.takes IS NOT NULL OR parent.step LIKE 'part[%')
        ) AS taken
        WHERE job.status = 'succeeded' AND job.result <> to_jsonb(taken.sum)
          AND job.workflow_run_id IS NOT NULL AND job.result <> 'null'
          AND job.job_type NOT LIKE 'django_jobs.%' AND job.job_type NOT IN (
              'chaos.rests', 'chaos.judges')""",
    "a run that has begun to undo itself and has not failed": """
        SELECT run.id, run.status FROM django_jobs_workflowrun AS run
        WHERE run.cancel_requested_at IS NULL AND run.status <> 'failed' AND EXISTS (
            SELECT 1 FROM django_jobs_job AS job
            WHERE job.workflow_run_id = run.id AND job.step LIKE 'undo %')""",
    "a step of a failed run that succeeded otherwise than it was undone": """
        SELECT run.id, job.step, job.status, undo.status
        FROM django_jobs_workflowrun AS run
        JOIN django_jobs_job AS job ON job.workflow_run_id = run.id
            AND job.step IN ('reserve', 'charge', 'ship')
        LEFT JOIN django_jobs_job AS undo ON undo.workflow_run_id = run.id
            AND undo.step = 'undo ' || job.step
        WHERE run.name = 'chaos.order' AND run.status = 'failed'
          AND (job.status = 'succeeded') <> (undo.id IS NOT NULL)""",
    "a step that was skipped and ran": """
        SELECT job.id, job.step, run.attempt, run.outcome FROM django_jobs_job AS job
        JOIN django_jobs_run AS run ON run.job_id = job.id AND run.outcome = 'succeeded'
        WHERE job.skipped IS NOT NULL""",
}

AGAIN = {"retry", "replay", "skip"}
"""What brings an ended run back."""

STEPS = """
SELECT id, status, skipped, result::text, last_error FROM django_jobs_job
WHERE workflow_run_id IS NOT NULL
"""
STATES = "SELECT id, status FROM django_jobs_workflowrun"
OF_STATUS = "SELECT count(*) FROM django_jobs_workflowrun WHERE status = "
COUNTS = {
    "runs that succeeded": f"{OF_STATUS} 'succeeded'",
    "runs that failed": f"{OF_STATUS} 'failed'",
    "runs that were cancelled": f"{OF_STATUS} 'cancelled'",
    "steps": "SELECT count(*) FROM django_jobs_job WHERE workflow_run_id IS NOT NULL",
    "steps that were skipped": "SELECT count(*) FROM django_jobs_job WHERE skipped IS NOT NULL",
    "steps that undid others": "SELECT count(*) FROM django_jobs_job WHERE step LIKE 'undo %'",
    "steps that were spawned": "SELECT count(*) FROM django_jobs_job WHERE step LIKE 'part[%'",
    "branches that were not taken": """
        SELECT count(DISTINCT job.id) FROM django_jobs_job AS job
        JOIN django_jobs_dependency AS edge ON edge.child_id = job.id
        WHERE job.skipped = 'unneeded' AND edge.condition IS NOT NULL""",
    "steps whose handler skipped them": """
        SELECT count(*) FROM django_jobs_job
        WHERE job_type = 'chaos.perhaps' AND skipped = 'unneeded' AND attempt > 0""",
    "optional steps that failed": """
        SELECT count(*) FROM django_jobs_job WHERE step = 'extra' AND skipped = 'passed'""",
    "runs that stopped at a failure": f"{OF_STATUS} 'failed' AND name = 'chaos.strict'",
}


def problems(database: Database, directory: Path) -> Iterator[tuple[int, str]]:
    """Rows that contradict each other, what is stuck, and operations that were not as answered."""
    written = _written(directory)
    for name, found in {
        "the rows contradict each other": contradictions(database.fetch),
        "a graph that is stuck": database.fetch(written["stuck"]),
        **{name: database.fetch(sql) for name, sql in ROWS.items()},
    }.items():
        if found:
            yield 22, f"{name}: {len(found)}, such as {found[:3]}"
    for problem in (*_keys(database, written), *_answers(database, written["done"])):
        yield 22, problem
    for name, count in _counts(database).items():
        if not count:
            yield 22, f"there are no {name}, so nothing was tried"


def counted(database: Database, directory: Path) -> dict[str, int]:
    """How runs and steps ended, and what operators did."""
    done = _written(directory)["done"]
    return {
        **_counts(database),
        "operations on workflows": sum(one["answer"] is True for one in done),
        "operations refused": sum(one["answer"] is False for one in done),
    }


def _counts(database: Database) -> dict[str, int]:
    return {name: int(database.fetch(sql)[0][0]) for name, sql in COUNTS.items()}


def _keys(database: Database, written: Mapping[str, Any]) -> Iterator[str]:
    there = [key for (key,) in database.fetch(RUNS)]
    kept = set(written["kept_runs"])
    for name, keys in {
        "runs that were acknowledged and are not there": kept - set(there),
        "runs that are there and were never acknowledged": set(there) - kept,
        "runs that are there twice": {key for key in there if there.count(key) > 1},
    }.items():
        if keys:
            yield f"{name}: {len(keys)}, such as {sorted(map(str, keys))[:3]}"


def _answers(database: Database, done: list[dict[str, Any]]) -> Iterator[str]:
    steps = {id_: others for id_, *others in database.fetch(STEPS)}
    runs = dict(database.fetch(STATES))
    again = {one["key"] for one in done if one["verb"] in AGAIN and one["answer"] is not False}
    for one in done:
        if one["answer"] is not True:
            continue
        match one["verb"]:
            case "cancel" if runs[one["run"]] != "cancelled" and one["key"] not in again:
                yield f"run {one['run']} was cancelled and is {runs[one['run']]}"
            case "skip" if steps[one["job"]][1] != "passed":
                yield f"step {one['job']} was skipped by hand and is {steps[one['job']]}"
            case "signal":
                status, _, result, error = steps[one["job"]]
                if status == "succeeded" and json.loads(result) != one["data"]:
                    yield f"step {one['job']} got {one['data']} and returned {result}"
                if status == "dead":
                    yield f"step {one['job']} got its signal and is dead: {error}"


def _written(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "keys-workflows.json").read_text())
    return found
