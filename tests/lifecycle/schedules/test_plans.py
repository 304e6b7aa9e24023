"""The plans that PostgreSQL makes for the statements of schedules, with 100,000 of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Subquery
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from django_jobs.lifecycle import pruning
from django_jobs.lifecycle.schedules import due, firing
from django_jobs.models import Schedule
from django_jobs.models.tick import last_of_schedule
from tests.factories import analyze, empty_tables, explain, leaves, rows_read, run_sql

SCHEDULES = 100_000
FINISHED = 20_000
LIVE = 20_000
DUE = 100

FILL = """
INSERT INTO django_jobs_schedule (name, job_type, payload, queue, priority, cron, every, timezone,
    enabled, jitter_seconds, dst, overlap, catch_up, declared, paused_at, paused_reason, error,
    stale, next_due_at, created_at)
SELECT 'many-' || n, 'app.noop', '{}', '', NULL, '', 3600, 'UTC', n %% 10 <> 0, 0, 'once', 'skip',
    'latest', false, CASE WHEN n %% 10 = 1 THEN now() END, '',
    CASE WHEN n %% 10 = 2 THEN 'x' ELSE '' END, false, now() + make_interval(secs => n), now()
FROM generate_series(1, %s) AS n
"""
FILL_JOBS = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, finished_at, last_error,
    reason, replays, headers, created_at, schedule_id, scheduled_for)
SELECT 'default', 'app.noop', '{}', 1, %s, 0, 0, now(), 1, 0, 0, 5, 3, now(), '', '', 0, '{}',
    now(), (SELECT min(id) FROM django_jobs_schedule) + n, now()
FROM generate_series(1, %s) AS n
"""
FILL_TICKS = """
INSERT INTO django_jobs_tick (schedule_id, due_at, outcome, reason, job_id, late_seconds,
    created_at)
SELECT schedule_id, now() - make_interval(hours => n), 'fired', '', id, 0, now()
FROM django_jobs_job, generate_series(1, 1) AS n WHERE status = 'succeeded'
"""


@pytest.fixture(scope="module", autouse=True)
def _many(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """100,000 schedules of which a hundred are due and a hundred were changed; their jobs. The
    plans are those of a million."""
    with django_db_blocker.unblock():
        empty_tables()
        run_sql("SET synchronous_commit = off")
        run_sql(FILL, [SCHEDULES])
        run_sql(
            "UPDATE django_jobs_schedule SET enabled = true, paused_at = NULL, error = '',"
            " next_due_at = now() - interval '1 s' WHERE id % 1000 = 7"
        )
        run_sql("UPDATE django_jobs_schedule SET stale = true WHERE id % 1000 = 8")
        run_sql(FILL_JOBS, ["succeeded", FINISHED])
        run_sql(FILL_JOBS, ["ready", LIVE])
        run_sql(FILL_JOBS, ["waiting", DUE])
        # Before the ticks: this session may have planned the check of their foreign key when the
        # table held a page, as a sequential scan. That took 97 s, until autovacuum came by.
        analyze("django_jobs_schedule", "django_jobs_job")
        run_sql(FILL_TICKS)
        run_sql("ANALYZE django_jobs_tick")
        try:
            yield
        finally:
            run_sql(
                "TRUNCATE django_jobs_schedule, django_jobs_job, django_jobs_tick,"
                " django_jobs_backfill, django_jobs_scheduleexception"
            )


pytestmark = pytest.mark.django_db


def schedules(condition: str) -> list[int]:
    return [id_ for (id_,) in run_sql(f"SELECT id FROM django_jobs_schedule WHERE {condition}")]


def indexes(plan: list[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in plan if "Index Name" in node}


def whole_tables(plan: list[dict[str, Any]]) -> set[str]:
    """Partitions without rows do not count."""
    return {
        node["Relation Name"]
        for node in plan
        if node["Node Type"] == "Seq Scan" and rows_of_tables([node]) > 0
    }


def rows_of_tables(plan: list[dict[str, Any]]) -> float:
    """All rows that the plan read of tables, those that it threw away included."""
    return sum(
        rows_read(node) * float(node["Actual Loops"]) for node in plan if "Relation Name" in node
    )


def plan_of(take: Any) -> list[dict[str, Any]]:
    """The plan of the one statement that ``take`` runs."""
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        take()
    (sql,) = [one["sql"] for one in queries if "SELECT" in one["sql"]]
    return explain(sql.replace("%", "%%"), {})


def test_a_look_reads_the_head_of_each_index() -> None:
    plan = explain(due.HORIZON, {})
    assert not whole_tables(plan)
    assert indexes(plan) >= {
        "django_jobs_schedule_due",
        "django_jobs_schedule_stale",
        "django_jobs_waiting_schedule",
    }
    assert rows_of_tables(plan) <= 10


def test_a_look_reads_no_more_with_many_live_jobs_that_do_not_wait() -> None:
    run_sql("UPDATE django_jobs_job SET status = 'cancelled' WHERE status = 'waiting'")
    assert rows_of_tables(explain(due.HORIZON, {})) <= 10


def test_due_schedules_are_read_from_the_head_of_their_index() -> None:
    plan = plan_of(lambda: due.take_due({"app.add": 1, "app.noop": 1}, 50))
    assert "django_jobs_schedule_due" in indexes(plan)
    assert not whole_tables(plan)
    assert not [node for node in plan if "Sort" in node["Node Type"]]
    assert rows_of_tables(plan) <= 51


def test_a_process_without_the_job_types_reads_only_what_is_due() -> None:
    plan = plan_of(lambda: due.take_due({"elsewhere.only": 1}, 50))
    assert "django_jobs_schedule_due" in indexes(plan)
    due_by_now = Schedule.objects.armed().filter(next_due_at__lte=Now()).count()
    assert rows_of_tables(plan) <= due_by_now  # a hundred, and one more each second


def test_stale_schedules_are_read_from_their_index() -> None:
    plan = plan_of(lambda: due.take_stale(500))
    assert "django_jobs_schedule_stale" in indexes(plan)
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 200


def test_schedules_are_read_and_moved_by_primary_key() -> None:
    ids = schedules("id % 200 = 1")
    assert len(ids) == 500
    plan = plan_of(lambda: due.read(ids))
    # The table of exceptions is empty, so that it may be read as a whole.
    assert indexes(plan) - {"django_jobs_scheduleexception_due"} == {"django_jobs_schedule_pkey"}
    assert rows_of_tables(plan) <= 500
    move = {"next_due": None, "last_due": None, "made": 1}
    rows = json.dumps([{"schedule": id_, **move} for id_ in ids])
    plan = explain(firing.ADVANCE, {"rows": rows})
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 1_000  # each is updated, too


def test_the_live_jobs_of_schedules_are_found_among_many_that_have_ended() -> None:
    first = schedules("true ORDER BY id LIMIT 1")[0]
    ids = list(range(first, first + 500))
    plan = explain(due.LIVE_JOBS, {"schedules": ids})
    assert indexes(plan) == {"django_jobs_live_schedule"}
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 500 + DUE


def test_how_the_last_jobs_ended_is_found_by_the_ticks_of_each_schedule() -> None:
    first = schedules("true ORDER BY id LIMIT 1")[0]
    rows = [{"schedule": first + n, "since": None, "count": 3} for n in range(1, 101)]
    plan = explain(due.LAST_ENDS, {"rows": json.dumps(rows)})
    history = {f"{name}_pkey" for name in leaves("django_jobs_job_history")}
    assert "django_jobs_tick_due" in indexes(plan)
    assert indexes(plan) & history  # those without rows are not worth an index
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 500


def test_the_last_tick_of_a_schedule_is_found_in_the_index_of_its_due_times() -> None:
    first = schedules("true ORDER BY id LIMIT 1")[0]
    some = Schedule.objects.filter(pk__range=(first + 1, first + 100))
    last = last_of_schedule("default").values("outcome")[:1]
    with CaptureQueriesContext(connection) as captured:
        rows = list(some.annotate(last=Subquery(last)).values_list("last", flat=True))
    assert rows == ["fired"] * 100
    plan = explain(captured.captured_queries[0]["sql"], {})
    assert "django_jobs_tick_due" in indexes(plan)
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 500


def test_starting_waiting_jobs_locks_only_schedules_without_live_ones() -> None:
    run_sql(
        "UPDATE django_jobs_job SET status = 'succeeded' WHERE status = 'ready' AND schedule_id IN"
        " (SELECT schedule_id FROM django_jobs_job WHERE status = 'waiting' ORDER BY id LIMIT 40)"
    )
    plan = explain(due.LOCK_WAITING, {})
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 5 * DUE
    ids = [id_ for (id_,) in run_sql(due.LOCK_WAITING)]
    assert len(ids) == 40
    plan = explain(due.START_NEXT_WAITING, {"schedules": ids})
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 5 * DUE
    plan = explain(due.START_ORPHANS, {})
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 3 * DUE


def test_pruning_looks_at_one_page_of_the_oldest_ticks() -> None:
    plan = explain(pruning.PRUNE_TICKS, {"older": 0.0, "page": 500})
    assert indexes(plan) == {"django_jobs_tick_pkey"}
    assert not whole_tables(plan)
    assert rows_of_tables(plan) <= 2_500
