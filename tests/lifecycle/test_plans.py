"""The plans that PostgreSQL makes for the statements of the hot path, on a large table."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from django_jobs import pause
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.retention import Kept
from django_jobs.lifecycle import (
    backlog,
    claiming,
    dead_letters,
    history,
    pausing,
    promoting,
    pruning,
    reaping,
    settling,
    settling_rows,
    workers,
)
from django_jobs.lifecycle.backlog_samples import PAST, RATE_SECONDS
from django_jobs.lifecycle.claiming import START
from django_jobs.lifecycle.dead_letters import DeadLimit
from django_jobs.lifecycle.job_columns import LIVE_TABLE
from django_jobs.lifecycle.operations import bulk, quarantines
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import Ending, Settled, _decide
from django_jobs.maintenance.tasks import maintenance_tasks
from django_jobs.metrics import forecast, gauges, overview, snapshot, stored, unclaimable
from django_jobs.metrics import unclaimable as quarantine_counts
from django_jobs.models import Job, Queue, Resource
from django_jobs.models.database import execute
from django_jobs.models.run import by_last_run
from tests.factories import analyze, empty_tables, explain, register_worker, rows_read, run_sql
from tests.workflows import start_graph

pytestmark = pytest.mark.django_db

MANY = 100_000

FILL = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, worker_id, claimed_at,
    finished_at, last_error, reason, replays, headers, created_at)
SELECT CASE WHEN n %% 10 = 0 THEN 'bulk' ELSE 'default' END, 'app.noop', '{}', 1, %(status)s, 0,
    extract(epoch FROM now()) - n, now() + make_interval(secs => %(due)s::float8 * n), 1, 0, 0, 5,
    3, %(worker)s, now(), %(finished)s::timestamptz, '', '', 0, '{}', now() - interval '30 days'
FROM generate_series(1, %(count)s) AS n
"""
FILL_RUNS = """
INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at, claimed_at,
    finished_at, error_type, error_message, traceback, fingerprint)
SELECT id, 1, 'succeeded', 1, now(), now(), now(), '', '', '', ''
FROM django_jobs_job WHERE status = 'succeeded'
"""


LIKE = """
SELECT indexrelid::regclass::text
FROM pg_index JOIN pg_class AS leaf ON leaf.oid = indrelid AND leaf.relispartition,
    LATERAL split_part(pg_get_indexdef(indexrelid), ' USING ', 2) AS definition,
    (SELECT %s::regclass AS of) AS named
WHERE definition = split_part(pg_get_indexdef(named.of), ' USING ', 2)
  AND split_part(leaf.relname, '_', 3)
      = split_part((SELECT relname FROM pg_class WHERE oid = (
            SELECT indrelid FROM pg_index WHERE indexrelid = named.of)), '_', 3)
"""


def fill(status: str, count: int, due: float = -1.0, worker: int | None = None) -> None:
    finished = "now" if status in ("succeeded", "dead", "cancelled") else None
    parameters = {"status": status, "count": count, "due": due, "worker": worker}
    run_sql(FILL, {**parameters, "finished": finished})  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def worker(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[int]:
    """A table that is large in every state but running (that is what a fleet holds in its hands);
    a worker that holds the running ones."""
    with django_db_blocker.unblock():
        empty_tables()
        run_sql("SET synchronous_commit = off")
        busy = register_worker()
        fill("succeeded", MANY)
        fill("ready", MANY)
        # An hour apart: with a second, as many more were due as seconds had gone by since.
        fill("scheduled", MANY, due=3_600.0)
        for status in ("waiting", "blocked", "dead", "cancelled"):
            fill(status, MANY)
        fill("running", 200, worker=busy)
        run_sql(FILL_RUNS)
        # A sample of the usual size, 30,000 rows, may find none of the 200 running.
        run_sql("SET default_statistics_target = 1000")
        analyze(*(f"django_jobs_{table}" for table in ("job", "run", "queue", "worker")))
        run_sql("RESET default_statistics_target")
        try:
            yield busy
        finally:
            run_sql("TRUNCATE django_jobs_job, django_jobs_run, django_jobs_worker")


def indexes(plan: list[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in plan if "Index Name" in node}


def like(index: str) -> set[str]:
    """The names of an index of a default partition, and of the same one in each other partition."""
    rows = run_sql(LIKE, [index])
    return {name for (name,) in rows}


def whole_tables(plan: list[dict[str, Any]]) -> set[str]:
    """The large tables that the plan reads from end to end. Partitions without rows are small."""
    read = {
        node["Relation Name"]
        for node in plan
        if node["Node Type"] == "Seq Scan" and rows_read(node) > 0
    }
    return {name for name in read if name.startswith(("django_jobs_job", "django_jobs_run"))}


def most_rows(plan: list[dict[str, Any]]) -> float:
    """The most rows that any part of the plan read, those that it threw away included."""
    return max(map(rows_read, plan))


def claim_plan(
    claim: str,
    worker: int,
    after: claiming.QueuePosition,
    queue: str = "default",
    rows: int = 20,
    versions: dict[str, int] | None = None,
) -> list[dict[str, Any]]:
    parameters = {
        "queue": queue,
        "rank": after[0],
        "id": after[1],
        "job_types": ["app.add", "app.noop"],
        "versions": json.dumps(versions or {}),
        "worker": worker,
        "limit": rows,
        "within_limit": False,
        "bytes": claiming.UNBOUNDED,
        "largest": 2**20,
        "async_types": ["app.add_async"],
    }
    return explain(claim, parameters)


CLAIMS = [statement for slots in claiming.Slots for statement in slots.value]


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("queue", ["default", "bulk"])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_claim_reads_the_ready_index_in_order_and_sorts_nothing(
    worker: int, claim: str, queue: str, resumed: bool
) -> None:
    place = START
    if resumed:
        (place,) = run_sql(
            "SELECT rank, id FROM django_jobs_job WHERE status = 'ready' AND queue = %s"
            " ORDER BY rank, id OFFSET 5000 LIMIT 1",
            [queue],
        )
    plan = claim_plan(claim, worker, place, queue)
    assert "django_jobs_ready" in indexes(plan)
    assert not whole_tables(plan)
    assert not [node for node in plan if "Sort" in node["Node Type"]]
    assert most_rows(plan) <= 20


@pytest.mark.parametrize("version", [1, 2])
def test_versions_and_quarantines_cost_a_claim_a_constant(worker: int, version: int) -> None:
    """Also where all rows are of a newer version, so that statistics say that none is of the
    first, and something is quarantined."""
    run_sql(
        "UPDATE django_jobs_job SET payload_version = %s"
        " WHERE status = 'ready' AND payload_version <> %s",
        [version, version],
    )
    for name in ("app.other", "app.third"):
        quarantines.quarantine(name)
    run_sql("ANALYZE django_jobs_job_live")
    for claim, rows in itertools.product(CLAIMS, (20, 300)):
        plan = claim_plan(claim, worker, START, rows=rows, versions={"app.noop": 2})
        assert "django_jobs_ready" in indexes(plan), (claim, rows)
        assert not whole_tables(plan), (claim, rows)
        assert not [node for node in plan if "Sort" in node["Node Type"]], (claim, rows)
        assert most_rows(plan) <= rows, claim


def test_blocking_reads_one_page_of_the_ready_index() -> None:
    quarantines.quarantine("app.other")
    run_sql(
        "UPDATE django_jobs_job SET job_type = 'app.other' WHERE id IN (SELECT id FROM"
        " django_jobs_job WHERE status = 'ready' AND queue = 'default' ORDER BY rank, id LIMIT 300)"
    )
    parameters = {"queue": "default", "rank": START[0], "id": START[1], "page": 2_000}
    plan = explain(quarantines.BLOCK, parameters)
    assert indexes(plan) >= {"django_jobs_ready", "django_jobs_job_pkey"}
    assert not whole_tables(plan)
    # The head's old versions are passed over once more: nothing has vacuumed them here.
    assert most_rows(plan) <= 2_300


def test_blocked_jobs_of_a_quarantine_are_found_by_their_index() -> None:
    run_sql(
        "UPDATE django_jobs_job SET reason = 'quarantined', job_type = 'app.blocked' || id % 3"
        " WHERE id IN (SELECT id FROM django_jobs_job WHERE status = 'blocked' LIMIT 50000)"
    )
    run_sql("ANALYZE django_jobs_job_live")
    quarantines.quarantine("app.blocked1")
    for sql, parameters, most in (
        (quarantines.TYPES_TO_UNBLOCK, {}, 4),
        (quarantines.UNBLOCK, {"job_type": "app.blocked2", "page": 1_000}, 1_000),
        (quarantine_counts.QUARANTINES, {**quarantine_counts.PARAMETERS, "most": 1_000}, 1_000),
    ):
        plan = explain(sql, parameters)
        assert "django_jobs_quarantined" in indexes(plan), sql
        assert not whole_tables(plan), sql
        assert most_rows(plan) <= most, sql


def test_without_blocked_jobs_the_task_reads_no_job() -> None:
    plan = explain(quarantines.TYPES_TO_UNBLOCK, {})
    assert not whole_tables(plan)
    assert most_rows(plan) <= 1


def test_what_maintenance_has_to_do_is_found_in_indexes_and_reads_few_rows() -> None:
    asks = {task.name: task.asks for task in maintenance_tasks() if task.asks}
    plan = explain(f"SELECT {asks.pop('reaping')}", {})
    assert not whole_tables(plan)
    assert most_rows(plan) <= 200  # all that run, unless the lease of their worker is over
    plan = explain(f"SELECT {', '.join(asks.values())}", {})
    assert indexes(plan) >= {"django_jobs_taken_key", "django_jobs_quarantined"}
    assert not whole_tables(plan)
    assert most_rows(plan) <= 10  # the rows of the queues


def test_crashes_are_found_by_their_own_index() -> None:
    run_sql(
        "UPDATE django_jobs_run SET outcome = 'lost', error_type = 'Crashed' WHERE id IN"
        " (SELECT id FROM django_jobs_run ORDER BY id LIMIT 500)"
    )
    plan = explain(quarantines.CRASHES, {"seconds": 600, "most": 200})
    assert indexes(plan) & like("django_jobs_run_crashed")
    assert not whole_tables(plan)
    assert most_rows(plan) <= 500  # all crashes of the period, where those of two days are sorted


@pytest.mark.parametrize("count", [1, 20, settling.FEW, 200])
@pytest.mark.parametrize("outcome", [Succeeded(), Succeeded(result="1")])
def test_a_settle_locks_its_jobs_by_primary_key_in_order(
    worker: int, count: int, outcome: Succeeded
) -> None:
    held = claiming.claimed_by(worker)[:count]
    endings = [Ending(job, outcome, started=time.monotonic()) for job in held]
    decided = [Settled(ending, _decide(ending, None)) for ending in endings]
    few = {"few": [job.id for job in held]}
    statement = settling.SETTLE_FEW if count <= settling.FEW else settling.SETTLE
    plan = explain(statement, settling.parameters(decided) | few)
    used = indexes(plan)
    assert "django_jobs_job_pkey" in used
    assert "django_jobs_running" not in used
    assert not whole_tables(plan)
    assert most_rows(plan) <= count
    (sort,) = [node for node in plan if node.get("Subplan Name") == "CTE settled"]
    assert (sort["Node Type"], len(sort["Sort Key"])) == ("Sort", 1)
    assert sort["Sort Key"][0].endswith(".id")
    # Row by row, in the order that was sorted.
    assert {node["Node Type"] for node in plan} >= {"Nested Loop", "Index Scan"}


def test_the_settle_of_one_job_reads_its_row_only(worker: int) -> None:
    (job, *_) = claiming.claimed_by(worker)
    ending = Ending(job, Succeeded(), started=time.monotonic())
    given = settling.parameters([Settled(ending, _decide(ending, None))]) | {"id": job.id}
    plan = explain(settling.SETTLE_ONE, given)
    assert indexes(plan) == {"django_jobs_job_pkey"}
    assert not whole_tables(plan)
    assert most_rows(plan) == 1


def test_giving_back_finds_its_jobs_by_primary_key(worker: int) -> None:
    held = claiming.claimed_by(worker)[:50]
    parameters = {
        "ids": [job.id for job in held],
        "attempts": [job.attempt for job in held],
        "workers": [job.worker for job in held],
    }
    plan = explain(settling.GIVE_BACK, parameters)
    assert "django_jobs_job_pkey" in indexes(plan)
    assert not whole_tables(plan)


def test_rows_locked_by_others_are_found_by_primary_key(worker: int) -> None:
    ids = [job.id for job in claiming.claimed_by(worker)[:50]]
    plan = explain(settling_rows.LOCKED_BY_OTHERS, {"ids": ids})
    assert indexes(plan) == {"django_jobs_job_pkey"}
    assert not whole_tables(plan)
    assert most_rows(plan) <= 50


def test_promoting_reads_the_due_end_of_the_scheduled_index() -> None:
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '1 s' WHERE id IN"
        " (SELECT id FROM django_jobs_job WHERE status = 'scheduled' LIMIT 100)"
    )
    plan = explain(promoting.PROMOTE, {"limit": promoting.BATCH})
    assert {"django_jobs_scheduled", "django_jobs_awaiting"} <= indexes(plan)
    assert not whole_tables(plan)
    assert most_rows(plan) <= 100


def test_claimed_jobs_are_found_by_the_running_index(worker: int) -> None:
    for sql, parameters in (
        (claiming.CLAIMED_BY, {"worker": worker, "ids": None}),
        (claiming.COUNT_RUNNING, {"queue": "default"}),
        (reaping.DECLARE_LOST, {"latest": None}),
        (reaping.ABANDONED, {"limit": reaping.BATCH}),
    ):
        plan = explain(sql, parameters)
        assert "django_jobs_running" in indexes(plan), sql
        assert not whole_tables(plan), sql
        # 200 are running; what rolled-back claims left in the index counts until vacuumed.
        assert most_rows(plan) <= 1_000, sql


def test_a_sweep_reads_only_workers_whose_lease_ran_out(worker: int) -> None:
    run_sql(
        "INSERT INTO django_jobs_worker SELECT (jsonb_populate_record(one, jsonb_build_object("
        "'id', n, 'status', 'stopped'))).* FROM django_jobs_worker AS one,"
        " generate_series(1, 5000) AS n WHERE one.id = %s",
        [worker],
    )
    register_worker(lease=-1.0)
    analyze("django_jobs_worker")
    in_time = timezone.now() + timedelta(hours=1)
    for latest in (None, in_time):
        plan = explain(reaping.DECLARE_LOST, {"latest": latest})
        assert "django_jobs_worker_alive" in indexes(plan)
        assert most_rows(plan) <= 100
    late = explain(reaping.DECLARE_LOST, {"latest": in_time - timedelta(days=1)})
    alive = [node for node in late if node.get("Index Name") == "django_jobs_worker_alive"]
    assert alive
    assert not any(rows_read(node) for node in alive)


def test_cancel_requests_are_found_by_their_own_index(
    worker: int,
) -> None:
    ids = [job.id for job in claiming.claimed_by(worker)[:3]]
    job_operations.cancel(ids)
    one = {"workers": [worker], "known": [None], "failures": [0], "rss": [1], "started": ["[]"]}
    others = {"lease": 30.0, "looked_ago": None, "clock_skew": None}
    one |= {"runs": [0], "failed": [0], "listens": [True]}
    for sql, parameters in (
        (workers.CANCELS, {"workers": [worker]}),
        (workers.RENEW, one | others),
    ):
        plan = explain(sql, parameters)
        assert "django_jobs_cancel_requested" in indexes(plan)
        assert not whole_tables(plan)
        assert most_rows(plan) <= 3


@pytest.mark.parametrize("limit, most", [(None, 1_000), (500, 1_000)])
def test_a_backlog_is_read_up_to_its_limit(limit: int | None, most: int) -> None:
    run_sql("UPDATE django_jobs_queue SET max_backlog = %s WHERE name = 'default'", [limit])
    plan = explain(backlog.BACKLOG, {"queue": "default", "most": 1_000})
    assert "django_jobs_ready" in indexes(plan)
    assert not whole_tables(plan)
    assert not [node for node in plan if "Sort" in node["Node Type"] and rows_read(node)]
    assert most_rows(plan) <= most


def test_a_look_at_the_levels_reads_the_jobs_of_queues_with_a_limit_alone() -> None:
    plan = explain(backlog.LIMITED, {"most": 1_000})
    assert "django_jobs_ready" not in indexes([node for node in plan if node["Actual Loops"]])
    run_sql("UPDATE django_jobs_queue SET max_backlog = 500 WHERE name = 'bulk'")
    plan = explain(backlog.LIMITED, {"most": 1_000})
    assert "django_jobs_ready" in indexes(plan)
    assert not whole_tables(plan)
    assert most_rows(plan) <= 1_000


def test_room_in_a_queue_is_looked_for_up_to_its_limit() -> None:
    plan = explain(backlog.COUNT, {"queue": "default", "most": 1_000})
    assert "django_jobs_ready" in indexes(plan)
    assert not whole_tables(plan)
    assert most_rows(plan) <= 1_000


@pytest.mark.parametrize("excess", [0, 1, 100])
def test_dropping_reads_the_ready_index_up_to_the_limit_and_from_its_end(excess: int) -> None:
    ((ready,),) = run_sql(
        "SELECT count(*) FROM django_jobs_job WHERE queue = 'bulk' AND status = 'ready'"
    )
    parameters = {"queue": "bulk", "limit": ready - excess, "most": 101, "reason": "full"}
    plan = explain(backlog.DROP_LOWEST, parameters)
    lines = "django_jobs_gates"
    assert indexes(plan) == {"django_jobs_ready", "django_jobs_job_pkey", lines}
    assert not whole_tables(plan)
    backwards = [node for node in plan if node.get("Scan Direction") == "Backward"]
    read = {node["Index Name"]: rows_read(node) for node in backwards}
    assert read == {"django_jobs_ready": excess, lines: 0}
    assert most_rows(plan) <= ready  # and there are 90,000 of the other queue


def test_the_keys_of_dropped_jobs_are_found_by_their_index() -> None:
    run_sql(
        "INSERT INTO django_jobs_uniquekey (queue, key, job_type, job_id, expires_at)"
        " SELECT 'bulk', n, 'app.noop', n, now() FROM generate_series(1, 20000) AS n"
    )
    run_sql("ANALYZE django_jobs_uniquekey")
    parameters = {"queue": "bulk", "keys": ["7", "8", "x"], "ids": [7, 9]}
    plan = explain(backlog.FREE_KEYS, parameters)
    assert indexes(plan) == {"django_jobs_unique_key", "django_jobs_uniquekey_pkey"}
    assert most_rows(plan) <= 3


def test_the_rates_of_many_runs_are_read_from_a_sample_by_primary_keys() -> None:
    # What other tests have rolled back are ids without a run, behind the last one.
    run_sql("SELECT setval('django_jobs_run_id_seq', (SELECT max(id) FROM django_jobs_run))")
    plan = explain(backlog.RATES, {"seconds": 300.0, "sample": 500, "day": "yesterday"})
    read = [node for node in plan if node["Node Type"] in ("Index Scan", "Index Only Scan")]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) >= 1_000
    assert len({name for name in indexes(plan) if name.endswith("_pkey")}) >= 3
    assert not whole_tables(plan)
    assert most_rows(plan) <= 500


def test_a_page_of_pruning_reads_only_its_jobs_and_their_runs() -> None:
    run_sql(
        "UPDATE django_jobs_job SET finished_at = now() - interval '8 days' WHERE id IN"
        " (SELECT id FROM django_jobs_job WHERE status = 'succeeded' ORDER BY id LIMIT 2000)"
    )
    rules = '{"*": {"succeeded": 604800}}'
    parameters = {"after": 0, "page": pruning.PAGE, "rules": rules, "shortest": 604800}
    parameters["with_runs"] = True
    plan = explain(pruning.PRUNE[pruning.HISTORY], parameters)
    assert indexes(plan) & like("django_jobs_job_history_default_pkey")
    assert indexes(plan) & like("django_jobs_run_attempt")
    assert not whole_tables(plan)
    assert most_rows(plan) <= pruning.PAGE


def beyond(column: str, name: str, **limits: float) -> dict[str, Any]:
    limit = DeadLimit(column=column, name=name, kept=Kept(**limits), but=["app.add"])  # type: ignore[arg-type]
    return dead_letters._parameters(limit, None) | {"page": pruning.PAGE}


OF_ALL_QUEUES = {"django_jobs_dead_queue", "django_jobs_dead_failure"}
"""Both have the dead jobs by queue, so that either counts them and steps from queue to queue."""


def test_pauses_that_are_over_are_found_by_indexes_where_there_are_many_rows() -> None:
    run_sql("INSERT INTO django_jobs_tenant (name, weight, paused_reason, created_at) "
            "SELECT 't' || n, 1, '', now() FROM generate_series(1, 5000) AS n")  # fmt: skip
    pause("tenant", "t7", until=timedelta(hours=1))
    analyze("django_jobs_tenant")
    assert "django_jobs_tenant_until" in indexes(explain(pausing.ENDED, {}))


def test_a_limit_on_dead_jobs_reads_the_kept_jobs_and_one_page() -> None:
    run_sql(
        "UPDATE django_jobs_job SET finished_at = now() - interval '1 day' WHERE id IN"
        " (SELECT id FROM django_jobs_job WHERE status = 'dead' ORDER BY id LIMIT 50000)"
    )
    run_sql("ANALYZE django_jobs_job_live")
    for (column, name, index), limits in itertools.product(
        (
            ("queue", "bulk", "django_jobs_dead_queue"),
            ("job_type", "app.noop", "django_jobs_dead_type"),
        ),
        ({"number": 3_000}, {"age": 3_600}, {"number": 10, "age": 3_600}),
    ):
        case = (column, limits)
        parameters = beyond(column, name, **limits)
        plan = explain(dead_letters.TAKE.format(column=column), parameters)
        assert indexes(plan) == {index}, case
        assert not whole_tables(plan), case
        sorts = [node for node in plan if node["Node Type"] == "Sort"]
        assert not [node for node in sorts if node["Actual Rows"] > 2], case
        assert most_rows(plan) <= max(limits.get("number", 0) + 1, pruning.PAGE), case
        plan = explain(dead_letters.COUNT.format(column=column), parameters)
        assert not whole_tables(plan), case
        assert indexes(plan) <= {"django_jobs_dead", index, *OF_ALL_QUEUES}, case


def test_within_its_limit_only_the_kept_jobs_are_read() -> None:
    run_sql("UPDATE django_jobs_job SET status = 'cancelled' WHERE status = 'dead' AND id % 25 > 0")
    run_sql("ANALYZE django_jobs_job_live")
    for column, name in (("queue", "bulk"), ("job_type", "app.noop")):
        parameters = beyond(column, name, number=5_000, age=86_400)
        plan = explain(dead_letters.TAKE.format(column=column), parameters)
        assert not whole_tables(plan), column
        assert most_rows(plan) <= 4_000, column


BULK_PAGE = bulk._FIND, bulk._COUNT
RARE = {"job_type": "app.add", "error": "0" * 16, "created_since": "2026-01-01T00:00:00+00:00"}


@pytest.mark.parametrize("template", BULK_PAGE)
@pytest.mark.parametrize("action", ["cancel", "replay"])
@pytest.mark.parametrize("terms", [{"queue": "bulk"}, RARE, {"ids": [1, 2, 3]}])
@pytest.mark.parametrize("after", [0, 10_000])
def test_a_chunk_of_an_operation_reads_one_page_of_live_jobs(
    template: str, action: str, terms: dict[str, Any], after: int
) -> None:
    sql, parameters = bulk.statement(template, action, terms)
    limits = {"after": after, "max_id": 10**9, "page": 2_000}
    plan = explain(sql, parameters | limits)
    assert not whole_tables(plan)
    assert most_rows(plan) <= 2_000
    of_jobs = {name for name in indexes(plan) if "run" not in name}
    assert of_jobs <= {"django_jobs_job_pkey", "django_jobs_dead"}


def test_the_outcomes_of_replayed_jobs_are_found_by_indexes() -> None:
    rows = run_sql("SELECT id FROM django_jobs_job WHERE status = 'succeeded' LIMIT 500")
    dead = run_sql("SELECT id FROM django_jobs_job WHERE status = 'dead' LIMIT 500")
    ids = [id_ for (id_,) in rows + dead]
    since = timezone.now() - timedelta(hours=1)
    parameters = {"jobs": ids, "attempts": [0] * len(ids), "since": since}
    plan = explain(bulk.OUTCOMES, parameters)
    assert not whole_tables(plan)
    assert most_rows(plan) <= 1_000


def test_the_queues_of_dead_jobs_are_found_with_a_step_for_each() -> None:
    plan = explain(dead_letters.QUEUES, {})
    assert indexes(plan) <= OF_ALL_QUEUES
    assert most_rows(plan) <= 3


def test_dead_jobs_are_deleted_by_primary_key() -> None:
    rows = run_sql("SELECT id FROM django_jobs_job WHERE status = 'dead' ORDER BY id LIMIT 2000")
    plan = explain(dead_letters.DELETE, {"ids": [id_ for (id_,) in rows], "with_runs": True})
    assert "django_jobs_job_pkey" in indexes(plan)
    assert indexes(plan) & like("django_jobs_run_attempt")
    assert not whole_tables(plan)
    assert most_rows(plan) <= pruning.PAGE


def test_dead_jobs_are_searched_by_their_last_run_with_a_search_of_one_partition_each() -> None:
    """As a join, this would read all runs of the history."""
    sql, parameters = by_last_run(Job.objects.dead(), error_code="503").query.sql_with_params()
    plan = explain(sql, parameters)
    assert not {name for name in whole_tables(plan) if name.startswith("django_jobs_run")}
    of_runs = [node for node in plan if node.get("Alias", "").lower().startswith("u0")]
    searched = [node for node in of_runs if node["Actual Loops"] > 0]
    assert len(of_runs) > len(searched) == 1
    assert searched[0]["Actual Loops"] == MANY
    assert searched[0]["Index Name"] in like("django_jobs_run_attempt")


def test_a_snapshot_reads_partial_indexes_up_to_its_bound() -> None:
    for sql in (snapshot.QUEUES, snapshot.OTHER_COUNTS):
        plan = explain(sql, {"most": 1000})
        assert not whole_tables(plan), sql
        assert most_rows(plan) <= 1000, sql
    # Of each of the two queues with ready jobs, and the scheduled ones.
    plan = explain(unclaimable.UNCLAIMABLE, {"most": 300, "upcoming": 400})
    assert not whole_tables(plan)
    assert most_rows(plan) <= 1000


def test_sizing_and_cost_read_the_newest_runs_and_their_jobs_by_id() -> None:
    run_sql("UPDATE django_jobs_run SET started_at = finished_at - interval '1 s' WHERE id % 2 = 0")
    for sql in (forecast.SIZING, forecast.COST):
        plan = explain(sql, {"most": 1000, "async_types": ["app.add_async"], "most_types": 20})
        assert not whole_tables(plan)
        assert most_rows(plan) <= 1000
        (live,) = (node for node in plan if node.get("Alias") == "live")
        assert (live["Node Type"], live["Actual Loops"]) == ("Index Scan", 500)


def test_a_peek_reads_one_entry_of_each_queue() -> None:
    plan = explain(promoting.PEEK, {"queues": ["default", "bulk", "emails"], "every": True})
    assert not whole_tables(plan)
    assert most_rows(plan) <= 10


def scrape_plan(**bounds: int) -> list[dict[str, Any]]:
    which = {"id": stored.SCRAPED}
    execute(stored.BEGIN, which)
    parameters = {**gauges.BOUNDS, **bounds, **gauges.ALL_TIME, "fresh": 5.0}
    return explain(gauges.REFRESH, {**parameters, **which})


def test_a_scrape_counts_live_jobs_of_a_sample_and_by_partial_indexes() -> None:
    plan = scrape_plan(pages=20, most=700, head=700)
    assert not whole_tables(plan)
    sample, of_late = (node for node in plan if node["Node Type"] == "Sample Scan")
    assert of_late["Actual Loops"] == 0
    ((pages, rows),) = run_sql(
        "SELECT pg_relation_size('django_jobs_job_live') / 8192.0, count(*) FROM"
        " django_jobs_job_live"
    )
    assert pages > 1_000
    # Each page is read with a chance of 20 in all: 60 would be nine standard deviations.
    assert 0 < sample["Actual Rows"] < 60 * rows / pages
    ours = [node for node in plan if "django_jobs" in node.get("Relation Name", "")]
    assert most_rows([node for node in ours if node is not sample]) <= 700
    # With an objective, as many pages are read once more.
    Queue.objects.filter(name="default").update(slo_seconds=1)
    plan = scrape_plan(pages=20, most=700, head=700)
    assert not whole_tables(plan)
    for sample in (node for node in plan if node["Node Type"] == "Sample Scan"):
        assert 0 < rows_read(sample) < 60 * rows / pages


def test_a_scrape_reads_the_errors_of_the_last_hour_by_their_key() -> None:
    run_sql(
        "INSERT INTO django_jobs_errortotal (began_at, job_type, error_type, fingerprint, runs)"
        " SELECT now() - make_interval(mins => minute), 'app.noop', 'KeyError', n, 1"
        " FROM generate_series(1, 1800) AS minute, generate_series(1, 10) AS n"
    )
    run_sql("ANALYZE django_jobs_errortotal")
    plan = scrape_plan()
    (read,) = (node for node in plan if node.get("Relation Name") == "django_jobs_errortotal")
    assert "Seq" not in read["Node Type"]
    assert 500 < rows_read(read) <= 600


def test_a_scrape_reads_the_totals_of_all_time_twice_by_their_key() -> None:
    fill_totals()
    run_sql(
        "INSERT INTO django_jobs_runtotal SELECT 0, '-infinity', queue, job_type, outcome, runs,"
        " waiting_buckets, waiting_seconds, start_lag_buckets, start_lag_seconds, runtime_buckets,"
        " runtime_seconds, gate_buckets, gate_seconds, slo_runs, slo_met FROM django_jobs_runtotal"
        " WHERE period = 60 AND began_at = date_bin('1 minute', now(), 'epoch')"
    )
    read = [node for node in scrape_plan() if node.get("Relation Name") == "django_jobs_runtotal"]
    assert [rows_read(node) * node["Actual Loops"] for node in read] == [50, 50]
    assert not [node for node in read if "Seq" in node["Node Type"]]


def test_a_snapshot_steps_from_queue_to_queue_of_blocked_jobs() -> None:
    run_sql(
        """UPDATE django_jobs_job SET gates = format('["default",[],null,null,%s,"wait"]', id % 400)
        WHERE id IN (SELECT id FROM django_jobs_job WHERE status = 'blocked' LIMIT 10000)"""
    )
    run_sql("ANALYZE django_jobs_job_live")
    plan = explain(snapshot.QUEUES, {"most": 50})
    assert not whole_tables(plan)
    stepped = [node for node in plan if node.get("Index Name") == "django_jobs_gates"]
    rows = sum(rows_read(node) * node["Actual Loops"] for node in stepped)
    assert 50 < rows <= 50 + 2  # those that are counted, and a step for the queue


def test_a_scrape_steps_from_line_to_line_of_blocked_jobs() -> None:
    Resource.objects.create(name="stripe")
    run_sql(
        """UPDATE django_jobs_job SET resources = '["stripe"]',
            gates = format('["default",["stripe"],null,null,%s,"wait"]', id % 400 * (id % 2))
        WHERE id IN (SELECT id FROM django_jobs_job WHERE status = 'blocked' LIMIT 10000)"""
    )
    run_sql("ANALYZE django_jobs_job_live")
    plan = scrape_plan(lines=100, head=300, most=50)
    assert not whole_tables(plan)
    stepped = [node for node in plan if node.get("Index Name") == "django_jobs_gates"]
    rows = sum(rows_read(node) * node["Actual Loops"] for node in stepped)
    assert 100 < rows <= 100 + 300 + 50 + 50  # the lines, their heads, and the first twice


@pytest.fixture
def half_is_read(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape reads half of the pages of live jobs. Of its usual 200 pages, eight hold jobs of one
    state where the updates of other tests have left five times the pages: give or take three."""
    ((pages,),) = run_sql(
        "SELECT pg_relation_size('django_jobs_job_live') / current_setting('block_size')::int"
    )
    monkeypatch.setattr(gauges, "BOUNDS", {**gauges.BOUNDS, "whole": 0, "pages": pages // 2})


@pytest.mark.usefixtures("half_is_read")
def test_a_scrape_estimates_what_is_too_much_to_count() -> None:
    jobs = {(row["queue"], row["state"]): row for row in gauges.read_gauges()["jobs"]}
    for state in ("ready", "dead", "blocked", "scheduled"):
        for queue, count in (("default", 0.9 * MANY), ("bulk", 0.1 * MANY)):
            assert jobs[queue, state]["jobs"] == pytest.approx(count, rel=0.5)
            assert jobs[queue, state]["estimated"]
    # Few enough to be counted.
    assert jobs["default", "running"] == {
        "queue": "default", "state": "running", "jobs": 180, "estimated": None
    }  # fmt: skip
    assert jobs["emails", "ready"]["jobs"] == 0


@pytest.mark.usefixtures("half_is_read")
def test_a_scrape_estimates_the_jobs_of_a_queue_without_a_row() -> None:
    Queue.objects.filter(name="bulk").delete()
    jobs = {(row["queue"], row["state"]): row for row in gauges.read_gauges()["jobs"]}
    for state in ("ready", "dead"):
        assert jobs["bulk", state]["jobs"] == pytest.approx(0.1 * MANY, rel=0.5)
        assert jobs["bulk", state]["estimated"]


def fill_totals() -> None:
    """Those of 50 job types in each hour of eight days and in each minute of three hours."""
    run_sql(
        """INSERT INTO django_jobs_runtotal
        SELECT period, date_bin(size, now(), 'epoch') - n * size, 'default', 'app.job' || type,
            'succeeded', 7, zeros, 0, zeros, 0, zeros, 0, zeros, 0, 0, 0
        FROM (VALUES (3600, interval '1 h', 191), (60, interval '1 min', 179)) AS of
                (period, size, most),
            generate_series(0, most) AS n, generate_series(1, 50) AS type,
            (SELECT array_fill(0::bigint, ARRAY[19]) AS zeros) AS no_times
        ORDER BY 1, 2, n"""
    )
    run_sql("ANALYZE django_jobs_runtotal")


def test_a_forecast_reads_the_runtimes_of_a_day_once_for_all_running_types() -> None:
    fill_totals()
    run_sql("UPDATE django_jobs_job SET job_type = 'app.job' || id % 50 WHERE status = 'running'")
    run_sql("UPDATE django_jobs_worker SET threads = 200")  # with fewer, some were prefetched
    plan = explain(forecast.RUNNING, {"most": 150})
    assert not whole_tables(plan)
    (totals,) = (node for node in plan if node.get("Relation Name") == "django_jobs_runtotal")
    assert (rows_read(totals), totals["Actual Loops"]) == (25 * 49, 1)  # one has no runs
    others = [node for node in plan if "django_jobs_job" in node.get("Relation Name", "")]
    assert most_rows(others) <= 150


def test_a_forecast_reads_samples_and_totals_however_many_jobs_are_ready() -> None:
    fill_totals()
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
        " SELECT name, now() - make_interval(mins => minute), 5, 0, 5"
        " FROM django_jobs_queue, generate_series(1, 360) AS minute"
    )
    run_sql("ANALYZE django_jobs_backlogsample")
    plan = explain(PAST, {"seconds": RATE_SECONDS + 30, "most": 150})
    assert not whole_tables(plan)
    totals = [node for node in plan if node.get("Relation Name") == "django_jobs_runtotal"]
    assert most_rows(totals) == 0  # there are none since the beginning
    jobs = [node for node in plan if "django_jobs_job" in node.get("Relation Name", "")]
    assert most_rows(jobs) <= 150
    judged, *of_queues = (node for node in plan if "sample" in node.get("Relation Name", ""))
    assert rows_read(judged) <= 360 * Queue.objects.count()
    assert all(rows_read(node) <= 1 for node in of_queues)


def test_the_overview_reads_an_hour_of_totals_and_live_jobs_by_index() -> None:
    fill_totals()
    which = {"id": stored.SHOWN, "fresh": stored.FRESH_SECONDS, "seconds": RATE_SECONDS + 30}
    execute(stored.BEGIN, which)
    bounds = {**overview.BOUNDS, "newest": 600, "running": 300, "pages": 4, "each": 60}
    names = {"queues": ["default", "bulk"], "full_queues": ["bulk"], "full_resources": ["stripe"]}
    names |= {"late_queues": ["default", "bulk"], "async_types": []}
    day = timezone.now() - timedelta(days=1)
    refresh = overview.REFRESH
    plan = explain(refresh, {**which, **bounds, **names, "day": day})
    assert not whole_tables(plan)
    totals = [node for node in plan if node.get("Relation Name") == "django_jobs_runtotal"]
    by_minute = [node for node in totals if rows_read(node) > 1_000]
    read = sorted(map(rows_read, by_minute))
    minutes = read[1] // 50
    assert read == [minutes * overview.BOUNDS["types"], minutes * 50]
    assert minutes in (59, 60)  # one more may have ended since they were filled
    others = [node for node in plan if "django_jobs_job" in node.get("Relation Name", "")]
    assert most_rows(others) <= 600
    one = {**bounds, "seconds": RATE_SECONDS + 30, "queues": ["bulk"], "async_types": []}
    assert not whole_tables(explain(overview.QUEUE, one))


def test_the_overview_looks_for_a_person_among_the_first_waits() -> None:
    run = start_graph({"a": ""}).pk
    run_sql(
        "UPDATE django_jobs_job_live SET awaits = 'answer', workflow_run_id = %s, step = id"
        " WHERE id = ANY(ARRAY("
        "SELECT id FROM django_jobs_job_live WHERE status = 'waiting' LIMIT 200))",
        [run],
    )
    run_sql(
        "INSERT INTO django_jobs_receipt (job_id, key, attempt, answer, made_at)"
        " SELECT id, 'signal:answer', 1, '{}', now() - interval '2 days'"
        " FROM django_jobs_job_live WHERE awaits = 'answer'"
    )
    plan = explain(overview.PARTS["asking"], {**overview.BOUNDS, "first": 50})
    jobs = [node for node in plan if "django_jobs_job" in node.get("Relation Name", "")]
    assert most_rows(jobs) == 50


def test_the_end_of_the_newest_rows_is_found_in_an_index_alone() -> None:
    for table in (history.JOBS.name, history.RUNS.name, LIVE_TABLE):
        plan = explain(f"SELECT {history.END_OF_NEWEST.format(table=table)}", {"number": 1_000})
        read = [node for node in plan if "Relation Name" in node]
        assert {node["Node Type"] for node in read} == {"Index Only Scan"}
        assert most_rows(read) <= 1_001
