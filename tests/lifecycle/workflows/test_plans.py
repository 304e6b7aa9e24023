"""The plans of the statements of workflows, beside many other runs: they read their own rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pytest_django import DjangoDbBlocker

from django_jobs.lifecycle import cancelling, compensating, opening, waits
from django_jobs.lifecycle.operations import dead_letters, signals
from django_jobs.lifecycle.operations import workflows as operations
from django_jobs.lifecycle.workflows import restarting, results, spawning, stuck
from tests.factories import analyze, empty_tables, explain, rows_read, run_sql

RUNS, PLAIN = 2_500, 50_000
STATES = ("ready", "running", "dead", "cancelled", "succeeded", "waiting", "waiting", "waiting")
"""Of the steps of a run: five, and three that each wait for two of them."""

FILL_RUNS = """
INSERT INTO django_jobs_workflowrun (name, status, payload, ends_left, reason, started_at,
    cancel_requested_at)
SELECT 'graph', 'running', '{}', 3, '', now(), CASE WHEN n %% 100 = 0 THEN now() END
FROM generate_series(1, %s) AS n
"""
FILL_STEPS = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, worker_id, claimed_at,
    finished_at, last_error, reason, replays, headers, created_at, workflow_run_id, step,
    prerequisites)
SELECT 'default', 'app.noop', '{}', 1, states.status, 0, 0, now(), 1, 0, 0, 5, 3,
    CASE WHEN states.status = 'running' THEN 1 END, now(),
    CASE WHEN states.status IN ('dead', 'cancelled', 'succeeded') THEN now() END, '', '', 0, '{}',
    now(), run.id, 'step-' || states.place, CASE WHEN states.status = 'waiting' THEN 5 END
FROM django_jobs_workflowrun AS run, unnest(%s::text[]) WITH ORDINALITY AS states (status, place)
"""
FILL_PLAIN = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, claimed_at, finished_at,
    last_error, reason, replays, headers, created_at)
SELECT 'default', 'app.noop', '{}', 1, status, 0, n, now(), 1, 0, 0, 5, 3, now(),
    CASE WHEN status = 'succeeded' THEN now() END, '', '', 0, '{}', now()
FROM generate_series(1, %s) AS n, unnest(ARRAY['scheduled', 'succeeded']) AS status
"""
FILL_EDGES = """
INSERT INTO django_jobs_dependency (workflow_run_id, parent_id, child_id, "when", takes)
SELECT parent.workflow_run_id, parent.id, child.id, 'finished', '["value"]'
FROM django_jobs_job AS parent JOIN django_jobs_job AS child
    ON child.workflow_run_id = parent.workflow_run_id AND child.prerequisites > 0
WHERE parent.prerequisites IS NULL
  AND right(parent.step, 1)::integer %% 3 <> right(child.step, 1)::integer %% 3
"""
FILL_RECEIPTS = """
INSERT INTO django_jobs_receipt (job_id, key, attempt, answer, made_at)
SELECT id, 'signal:approval', 1, '{"until": "2020-01-01"}', now() FROM django_jobs_job
WHERE workflow_run_id IS NOT NULL
"""
TABLES = ("job", "dependency", "workflowrun", "receipt")


class Rows(NamedTuple):
    """A run in the middle, and its steps."""

    run: int
    steps: list[int]
    waiting: list[int]


@pytest.fixture(scope="module", autouse=True)
def rows(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Rows]:
    with django_db_blocker.unblock():
        empty_tables()
        run_sql("SET synchronous_commit = off")
        run_sql(FILL_RUNS, [RUNS])
        run_sql(FILL_STEPS, [list(STATES)])
        run_sql(FILL_PLAIN, [PLAIN])
        analyze("django_jobs_job")  # or the join below may take half a minute
        run_sql(FILL_EDGES.replace("%%", "%"))
        run_sql(FILL_RECEIPTS)
        analyze(*(f"django_jobs_{table}" for table in TABLES))
        ((run,),) = run_sql(
            "SELECT id FROM django_jobs_workflowrun ORDER BY id OFFSET 2000 LIMIT 1"
        )
        steps = run_sql(
            "SELECT id, prerequisites FROM django_jobs_job WHERE workflow_run_id = %s ORDER BY id",
            [run],
        )
        try:
            yield Rows(run, [id_ for id_, _ in steps], [id_ for id_, count in steps if count])
        finally:
            run_sql(f"TRUNCATE {', '.join(f'django_jobs_{table}' for table in TABLES)} CASCADE")


STATEMENTS: dict[str, str] = {
    "opening.COUNT_DOWN": opening.COUNT_DOWN,
    "opening.COUNT_DOWN after failures": opening.COUNT_DOWN,
    "opening.STOP": opening.STOP,
    "opening.COUNT_DOWN_MET": opening.COUNT_DOWN_MET,
    "opening.BACK": opening.BACK,
    "opening.SKIP": opening.SKIP,
    "opening.COUNT_ENDS": opening.COUNT_ENDS,
    "compensating.DECLARED": compensating.DECLARED,
    "compensating.NOTE_FAILED": compensating.NOTE_FAILED,
    "compensating.FAILED": compensating.FAILED,
    "restarting.READ_RUN": restarting.READ_RUN,
    "restarting.LOCK_RUN": restarting.LOCK_RUN,
    "restarting.RESTART": restarting.RESTART,
    "restarting.PUT_BACK": restarting.PUT_BACK,
    "restarting.CHILDREN": restarting.CHILDREN,
    "restarting.BRING_BACK": restarting.BRING_BACK,
    "restarting.BROKEN": restarting.BROKEN,
    "restarting.COUNT_UP": restarting.COUNT_UP,
    "restarting.COUNT_AGAIN": restarting.COUNT_AGAIN,
    "restarting.REOPEN": restarting.REOPEN,
    "restarting.SKIP_BY_HAND": restarting.SKIP_BY_HAND,
    "spawning.STORED": spawning.STORED,
    "spawning.LOCK": spawning.LOCK,
    "spawning.LOCK_RUN": spawning.LOCK_RUN,
    "spawning.WAITING": spawning.WAITING,
    "spawning.MAKE_STEP": spawning.MAKE_STEP,
    "spawning.ADD_PREREQUISITES": spawning.ADD_PREREQUISITES,
    "spawning.ADD_ENDS": spawning.ADD_ENDS,
    "results.TAKEN": results.TAKEN,
    "results.STEP": results.STEP,
    "results.NAMES": results.NAMES,
    "results.PARENTS": results.PARENTS,
    "results.OF_IDS": results.OF_IDS,
    "dead_letters.DISMISS": dead_letters.DISMISS,
    "dead_letters.FORGET_FAILED": dead_letters.FORGET_FAILED,
    "operations.TO_CANCEL": operations.TO_CANCEL,
    "cancelling.ENDS_AMONG": cancelling.ENDS_AMONG,
    "cancelling.LOCK_FREE_STEPS": cancelling.LOCK_FREE_STEPS,
    "operations.REQUEST_CANCEL": operations.REQUEST_CANCEL,
    "operations.UNFINISHED_CANCELS": operations.UNFINISHED_CANCELS,
    "signals.LOCK": signals.LOCK,
    "signals.SIGNAL": signals.SIGNAL,
    "waits.BEGIN_SLEEP": waits.BEGIN_SLEEP,
    "waits.BEGIN_WAIT": waits.BEGIN_WAIT,
}


OF_WAITING = ("opening.SKIP", "restarting.COUNT_AGAIN")


def parameters(name: str, rows: Rows) -> dict[str, Any]:
    many = len(rows.steps)
    given: dict[str, Any] = {
        "run": rows.run,
        "runs": [rows.run],
        "ids": rows.waiting if name in OF_WAITING else rows.steps,
        "id": rows.waiting[0],
        "fates": ["failed" if "failures" in name else "succeeded"] * many,
        "failed": [True] * len(rows.waiting),
        "parents": rows.steps[: len(rows.waiting)],
        "ends": 1 if name == "spawning.ADD_ENDS" else [1],
        "cancelled": [False],
        "undo": True,
        "note": "",
        "look": True,
        "reasons": [""],
        "reason": "",
        "why": "",
        "by": "",
        "key": "signal:approval",
        "name": "approval",
        "data": "7",
        "step": "" if name == "operations.TO_CANCEL" else "step-3",
        "steps": [f"step-{place}" for place in range(1, many + 1)],
        "statuses": ["waiting", "ready"],
        "page": 100,
        "limit": 1_000,
        **{"bytes": results.PAGE_BYTES, "largest": 1_048_576},
        "after": 0,
        "most": 20,
        "ended": True,
        "count": 1,
        "seconds": 10.0,
        "attempt": 1,
        "worker": 1,
    }
    if name == "operations.TO_CANCEL":
        given["id"] = 0
    return given


@pytest.mark.django_db
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_reads_the_rows_of_its_run_by_indexes(rows: Rows, name: str) -> None:
    plan = explain(STATEMENTS[name], parameters(name, rows))
    read = {
        node["Relation Name"]: rows_read(node) for node in plan if node["Node Type"] == "Seq Scan"
    }
    assert not {table for table, count in read.items() if count > 0}
    assert max(map(rows_read, plan)) <= 100


@pytest.mark.django_db
def test_the_search_for_what_is_stuck_reads_steps_and_no_plain_jobs() -> None:
    plan = explain(stuck.STUCK, {})
    assert "django_jobs_job_live" not in {
        node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"
    }
