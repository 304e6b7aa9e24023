"""The plans of admission and hand-over, where many jobs wait in many lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from django_jobs.domain.gates import ALONE, Gates, LoneGate
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import (
    backlog,
    claiming,
    gate_limits,
    known_types,
    pausing,
    promoting,
    settling,
)
from django_jobs.lifecycle.gates import admission, arrivals, conflicts, supply
from django_jobs.lifecycle.settling import Ending, Settled, _decide
from django_jobs.models import Resource
from tests.factories import analyze, empty_tables, explain, register_worker, rows_read, run_sql

pytestmark = pytest.mark.django_db

LINES, DEEP = 500, 20_000
KNOWN = known_types.parameters({"app.noop": 1})
FILL = """
INSERT INTO django_jobs_job_live (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, max_attempts, max_crashes, worker_id, claimed_at, headers, created_at,
    tenant, concurrency_key, resources, gates)
SELECT 'default', 'app.noop', '{}', 1, %(status)s, 0, n, now(), 1, 5, 3, %(worker)s, now(), '{}',
    now(), %(tenant)s, replace(%(key)s, '#', (n %% %(lines)s)::text), %(resources)s::jsonb,
    replace(%(gates)s, '#', (n %% %(lines)s)::text)
FROM generate_series(1, %(count)s) AS n
"""
KEYS = Gates(queue="default", key="key:#", limit=2)
DEEP_KEY = Gates(queue="default", key="deep")
TENANT = Gates(tenant="t", queue="default", resources=("stripe",))


def fill(status: str, count: int, gates: Gates, lines: int = 1, worker: int | None = None) -> None:
    parameters: dict[str, Any] = {
        "status": status,
        "count": count,
        "lines": lines,
        "worker": worker,
        "tenant": gates.tenant,
        "key": gates.key,
        "resources": '["stripe"]' if gates.resources else None,
        "gates": gates.text,
    }
    run_sql(FILL, parameters)  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def worker(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[int]:
    """Many lines, one of them deep; slots that are taken; plain jobs of each kind."""
    with django_db_blocker.unblock():
        empty_tables()
        busy = register_worker()
        fill("blocked", 5_000, KEYS, LINES)
        fill("blocked", DEEP, DEEP_KEY)
        fill("blocked", 2_000, TENANT)
        fill("running", LINES, KEYS, LINES, worker=busy)
        fill("running", 20, TENANT, worker=busy)
        fill("ready", 1, DEEP_KEY)
        run_sql(
            "INSERT INTO django_jobs_job_live (queue, job_type, payload, payload_version, status,"
            " priority, rank, available_at, max_attempts, max_crashes, headers, created_at)"
            " SELECT 'default', 'app.noop', '{}', 1, 'ready', 0, n, now(), 5, 3, '{}', now()"
            " FROM generate_series(1, 20000) AS n"
        )
        analyze("django_jobs_job", "django_jobs_worker")
        try:
            yield busy
        finally:
            run_sql("TRUNCATE django_jobs_job, django_jobs_run, django_jobs_worker")


def read(plan: list[dict[str, Any]], table: str = "django_jobs_job_live") -> float:
    """The most rows of jobs that a part of the plan read."""
    return max(rows_read(node) for node in plan if node.get("Relation Name") == table)


def indexes(plan: list[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in plan if "Index Name" in node}


def test_lines_are_found_by_steps_in_their_index() -> None:
    parameters = {"after": "", "lines": 400, "alone": False, "own": ["default"]}
    run_sql("SELECT set_config('django_jobs.turn', 'true', true)")
    plan = explain(admission.LINES, parameters)
    jobs = [node for node in plan if node.get("Relation Name") == "django_jobs_job_live"]
    assert indexes(jobs) == {"django_jobs_gates"}
    assert read(plan) <= 1  # at each step


def test_what_waits_is_counted_in_the_index_of_the_lines_up_to_the_limit() -> None:
    asked = {
        "resources": ['"stripe"', "", "", ""],
        "lows": ["", '"t",', 'null,"key:7",', 'null,"deep",'],
        "highs": ["o", '"t"-', 'null,"key:7"-', 'null,"deep"-'],
        "mosts": [100, 50, 20, 200],
    }
    plan = explain(gate_limits.COUNT_WAITING, asked)
    jobs = [node for node in plan if node.get("Relation Name") == "django_jobs_job_live"]
    assert indexes(jobs) == {"django_jobs_gates"}
    heads = 2  # with the resource, and without
    counted = 100 + 50 + 10 + 200
    rows = (node["Actual Rows"] * node["Actual Loops"] for node in jobs)
    assert heads + counted <= sum(rows) <= heads + counted + 4


def test_what_has_a_slot_of_a_resource_is_found_among_those_that_have_any() -> None:
    Resource.objects.create(name="stripe")
    plan = explain(supply.HELD, {"name": "stripe", "most": 100})
    assert "django_jobs_taken_resource" in indexes(plan)
    assert read(plan) <= 100


def test_what_waits_at_the_gates_of_a_queue_is_counted_up_to_its_limit() -> None:
    """Without a sort of what is counted; the few limited queues may be sorted by their names."""
    run_sql("UPDATE django_jobs_queue SET max_backlog = 300 WHERE name = 'default'")
    for sql in (backlog.BACKLOG, backlog.COUNT, backlog.LIMITED):
        plan = explain(sql, {"queue": "default", "most": 300})
        scans = [node for node in plan if node.get("Index Name") == "django_jobs_gates"]
        assert [node["Actual Rows"] for node in scans] == [300]
        assert scans[0]["Plan Rows"] > 300  # or it would rather sort them


def test_the_lowest_job_is_looked_for_at_the_end_of_each_line() -> None:
    """Of 502 lines, one of them of 20,000 jobs."""
    excess, held = 3, 5_000 + DEEP + 2_000 + 20_001
    asked: dict[str, Any] = {"queue": "default", "limit": held - excess, "most": 100, "reason": "f"}
    whole = {"resource": "", "low": "", "high": "o", "limit": held - 20_001 - excess}
    for sql, parameters in ((backlog.DROP_LOWEST, asked), (backlog.DROP_WAITING, asked | whole)):
        plan = explain(sql, parameters)
        backwards = [
            node
            for node in plan
            if node.get("Scan Direction") == "Backward"
            and node.get("Index Name") == "django_jobs_gates"
        ]
        (each,) = backwards
        assert each["Actual Loops"] == LINES + 2
        assert each["Actual Rows"] <= excess


@pytest.mark.parametrize("why", ["beyond the budget", "unknown", "startable"])
def test_lines_that_cannot_start_are_sifted_by_a_look_at_each(why: str) -> None:
    """However many other jobs are blocked."""
    if why == "beyond the budget":
        run_sql("UPDATE django_jobs_job_live SET failures = 1 WHERE concurrency_key <> 'deep'")
    lines = [KEYS.text.replace("#", str(number)) for number in range(400)]
    known = known_types.parameters({"app.other": 1}) if why == "unknown" else KNOWN
    asked = {"lines": lines, "retries": [False] * len(lines), **known}
    plan = explain(admission.STARTABLE, asked)
    jobs = [node for node in plan if node.get("Relation Name") == "django_jobs_job_live"]
    assert indexes(jobs) == {"django_jobs_gates"}
    assert {node["Actual Loops"] for node in jobs} == {len(lines)}
    assert read(plan) <= 5_000 / LINES * (1 if why == "startable" else 2)


def test_a_poll_looks_at_one_blocked_job() -> None:
    plan = explain(promoting.PEEK, {"queues": ["default"], "every": False})
    assert "django_jobs_gates" in indexes(plan)
    assert read(plan) <= 1


def test_what_is_taken_is_counted_in_the_indexes_of_the_gates() -> None:
    keys = [f"key:{number}" for number in range(400)]
    parameters = {
        "keys": keys,
        "tenants": ["t"],
        "rated": ["t"],
        "queues": ["default"],
        "types": ["app.noop"],
        "limited": ["default"],
    }
    plan = explain("UNION ALL".join(supply.TAKEN.values()), parameters)
    taken = {f"django_jobs_taken_{gate}" for gate in ("key", "tenant", "resource")}
    assert indexes(plan) <= {*taken, "django_jobs_running"}
    assert read(plan) <= 800
    plan = explain(supply.RESOURCES, {})
    assert indexes(plan) == {"django_jobs_taken_resource"}
    assert read(plan) <= 100
    plan = explain(supply.READY_METERED, {**parameters, "names": ["stripe"]})
    assert indexes(plan) == {"django_jobs_taken_resource"}
    assert read(plan) <= 100


def test_an_admission_reads_as_many_jobs_as_it_admits() -> None:
    lines = [Gates(queue="default", key=f"key:{number}", limit=2).text for number in range(100)]
    parameters = {"lines": [*lines, DEEP_KEY.text], "counts": [1] * 100 + [3], **KNOWN}
    plan = explain(admission.ADMIT, parameters)
    assert indexes(plan) == {"django_jobs_gates", "django_jobs_job_pkey"}
    assert read(plan) <= 103


@pytest.mark.parametrize("gate", LoneGate)
def test_a_look_at_arrivals_reads_a_few_lines_and_what_it_admits(gate: LoneGate) -> None:
    run_sql("SELECT set_config('django_jobs.turn', 'true', true)")
    parameters = {
        "alone": ALONE[gate], "few": arrivals.FEW, "most": 500, "own": ["default"], "room": [10],
        **KNOWN,
    }  # fmt: skip
    plan = explain(arrivals.ADMIT_ARRIVALS[gate], parameters)
    of_jobs = {name for name in indexes(plan) if "_name_" not in name}
    assert of_jobs == {"django_jobs_gates", f"django_jobs_taken_{gate}", "django_jobs_job_pkey"}
    assert read(plan) <= arrivals.FEW + 1


@pytest.mark.parametrize("count", [1, 20, 200])
def test_a_hand_over_reads_as_many_jobs_as_it_opens(worker: int, count: int) -> None:
    held = claiming.claimed_by(worker)[:count]
    endings = [Ending(job, Succeeded(), started=time.monotonic()) for job in held]
    decided = [Settled(ending, _decide(ending, None)) for ending in endings]
    parameters = settling.parameters(decided) | {"compared": ["another line"], **KNOWN}
    few = {"few": [job.id for job in held]}
    for statement in (settling.SETTLE_AND_HAND_OVER, settling.SETTLE_FEW_AND_HAND_OVER):
        plan = explain(statement, parameters | few)
        assert indexes(plan) == {"django_jobs_gates", "django_jobs_job_pkey"}
        assert read(plan) <= count


def test_a_sweep_reads_the_jobs_that_hold_slots_alone() -> None:
    parameters = {"queues": ["other"], "most": pausing.BATCH, **KNOWN}
    plan = explain(pausing.GIVE_UP_SLOTS_OF_CLOSED, parameters)
    taken = {f"django_jobs_taken_{gate}" for gate in ("key", "tenant", "resource")}
    assert indexes(plan) <= {*taken, "django_jobs_job_pkey", "django_jobs_job_live_pkey"}
    assert taken <= indexes(plan)
    assert read(plan) <= LINES + 1


def test_a_conflict_reads_its_line_and_its_key_alone() -> None:
    parameters = {
        "gates": [Gates(queue="default", key="key:1", limit=2).text],
        "key": "key:1",
        "limit": 1,
        "most": conflicts.MOST,
        "newest": None,
        "reason": "",
    }
    assert read(explain(conflicts.END_BLOCKED, parameters)) <= 10
    assert indexes(explain(conflicts.TAKEN_SLOTS, parameters)) == {"django_jobs_taken_key"}
    assert indexes(explain(conflicts.NEWEST, parameters)) == {"django_jobs_gates"}
    both = {"django_jobs_gates", "django_jobs_taken_key"}
    assert indexes(explain(conflicts.OLDER, parameters)) == both
