"""A shop after ten days: a million jobs, three million runs, three hundred schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django_jobs.lifecycle.history import ATTACH, CREATE, TABLES
from django_jobs.models import Job, Worker
from tests.factories import fold_runs, run_sql

from .history import KINDS, write_history
from .scene import QUEUES, make_scene

JOBS, SCHEDULES, DAYS = 1_000_000, 300, 10
FAILURES = 400
"""Kinds of what the dead jobs among the live ones died of."""

# Of ten live jobs one is dead, eight are scheduled and one is ready.
LIVE = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, max_attempts, max_crashes, finished_at, last_error, reason,
    fingerprint, headers, created_at)
SELECT (%(queues)s::text[])[slot], (%(types)s::text[])[slot],
    jsonb_build_object('customer_id', n %% 4999, 'order_id', 100000 + n), 1, status, 0,
    extract(epoch FROM due), due, (status = 'dead')::int, (status = 'dead')::int, 5, 3,
    CASE status WHEN 'dead' THEN due END,
    CASE status WHEN 'dead' THEN 'TimeoutError: the partner did not answer in 30 s' ELSE '' END,
    CASE status WHEN 'dead' THEN '5 failures' ELSE '' END,
    CASE status WHEN 'dead' THEN md5((n / 10 %% %(failures)s)::text)::varchar(16) ELSE '' END,
    '{}', due - interval '1 h'
FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT 1 + n %% cardinality(%(types)s::text[]) AS slot,
        CASE n %% 10 WHEN 0 THEN 'dead' WHEN 1 THEN 'ready' ELSE 'scheduled' END AS status) AS kind,
    LATERAL (SELECT now() + make_interval(secs => CASE status
        WHEN 'dead' THEN -n * 25 WHEN 'ready' THEN -n / 100 ELSE n * 3 END) AS due) AS times
"""
DEAD_RUNS = """
INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at, claimed_at,
    started_at, finished_at, error_type, error_message, traceback, fingerprint)
SELECT id, 1, 'failed', %(worker)s, finished_at - interval '3 s', finished_at - interval '2 s',
    finished_at - interval '2 s', finished_at, 'TimeoutError',
    'the partner did not answer in 30 s',
    repeat('  File "shop/crm.py", line 7, in put' || chr(10), 9),
    fingerprint
FROM django_jobs_job AS job WHERE status = 'dead'
    AND NOT EXISTS (SELECT FROM django_jobs_run WHERE job_id = job.id)
"""
SCHEDULED = """
INSERT INTO django_jobs_schedule ({columns})
SELECT {values} FROM django_jobs_schedule AS model, generate_series(1, %s) AS n
WHERE model.name = 'reindex'
"""
TICKS = """
INSERT INTO django_jobs_tick
    (schedule_id, due_at, outcome, reason, job_id, late_seconds, created_at)
SELECT schedule.id, now() - make_interval(mins => 15 * n), 'fired', '', %s, 0.1, now()
FROM django_jobs_schedule AS schedule, generate_series(1, 60) AS n ON CONFLICT DO NOTHING
"""
WORKERS = """
INSERT INTO django_jobs_worker ({columns})
SELECT {values} FROM django_jobs_worker AS model, generate_series(1, 58) AS n
WHERE model.name = 'web-0'
"""
TABLE_NAMES = """
SELECT relname FROM pg_class WHERE relname LIKE 'django\\_jobs\\_%%' AND relkind = 'r'
"""


def make_large_scene(scale: float = 1.0) -> dict[str, int]:
    """Fill the empty tables. Returns what :func:`.make_scene` does."""
    _partitions()
    found = make_scene(history=2000)
    live = int(27_000 * scale)
    workers = list(Worker.objects.values_list("pk", flat=True))
    # In the last hour as much as the scene has, so the days before it hold the rest.
    write_history(int(JOBS * scale) - live, DAYS * 86_400, workers, more_runs=2)
    kinds = [*KINDS, *KINDS[:1]]
    values = {"types": [one.job_type for one in kinds], "queues": [one.queue for one in kinds]}
    run_sql(LIVE, {**values, "count": live, "failures": FAILURES})  # type: ignore[arg-type]
    run_sql(DEAD_RUNS, {"worker": workers[0]})  # type: ignore[arg-type]
    _copies(SCHEDULED, "django_jobs_schedule", {"name": "name || ' ' || n"}, SCHEDULES)
    run_sql(TICKS, [Job.objects.earliest("pk").pk])
    others = {"id": "model.id - n", "status": "'stopped'", "stopped_at": "now()"}
    _copies(WORKERS, "django_jobs_worker", others)
    fold_runs()
    for (table,) in run_sql(TABLE_NAMES, [0][:0]):
        run_sql(f"VACUUM (ANALYZE) {table}")
    return found


def _partitions() -> None:
    """For each of the days, as workers would have made them in time."""
    today = datetime.now(UTC).date()
    for ago in range(DAYS + 1, 0, -1):
        day = today - timedelta(days=ago)
        names = {
            "start": f"'{day} 00:00:00+00'",
            "end": f"'{day + timedelta(days=1)} 00:00:00+00'",
        }
        for table in TABLES:
            leaf = {"name": f"{table.prefix}{day:%Y%m%d}", "default": table.default}
            run_sql(CREATE.format(**leaf))
            run_sql(ATTACH.format(table=table.name, **leaf, **names))


def _copies(sql: str, table: str, changed: dict[str, str], *parameters: int) -> None:
    names = [
        name
        for (name,) in run_sql(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s", [table]
        )
        if name in changed or name != "id"
    ]
    values = [changed.get(name, f"model.{name}") for name in names]
    run_sql(sql.format(columns=", ".join(names), values=", ".join(values)), parameters)


__all__ = ["QUEUES", "make_large_scene"]
