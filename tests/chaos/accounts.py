"""What must hold when all faults are over. An account that does not balance says which rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clusters import Cluster

from .settings import LEASE, POLL, SWEEP

LOST_TOO_LATE = """
SELECT run.job_id, run.attempt,
    extract(epoch FROM run.finished_at - worker.heartbeat_at)::float8
FROM django_jobs_run AS run JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
WHERE run.outcome = 'lost' AND run.finished_at > worker.heartbeat_at + make_interval(secs => %s)
"""

SUCCEEDED = """
SELECT run.job_id, run.attempt, worker.name
FROM django_jobs_run AS run JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
WHERE run.outcome = 'succeeded'
"""

ROWS = {
    # Nothing is lost, and nothing is there twice.
    "a job that has not ended": """
        SELECT id, status, job_type FROM django_jobs_job
        WHERE status NOT IN ('succeeded', 'dead', 'cancelled')""",
    "a key that two jobs bear": """
        SELECT idempotency_key, count(*) FROM django_jobs_job
        WHERE idempotency_key IS NOT NULL GROUP BY 1 HAVING count(*) > 1""",
    "a poison pill that is not dead": """
        SELECT id, status FROM django_jobs_job
        WHERE job_type = 'chaos.poison' AND status <> 'dead'""",
    "an innocent job that is not done": """
        SELECT id, status, job_type, reason FROM django_jobs_job
        WHERE job_type <> 'chaos.poison' AND status <> 'succeeded'""",
    # Exactly once, where that was promised.
    "a transactional effect that is not there once": """
        SELECT job.id, job.status, count(mark.id) FROM django_jobs_job AS job
        LEFT JOIN chaos_mark AS mark ON mark.job_id = job.id
        WHERE job.job_type = 'chaos.inside' GROUP BY job.id
        HAVING count(mark.id) <> CASE WHEN job.status = 'succeeded' THEN 1 ELSE 0 END""",
    # Every attempt has its run.
    "a job whose runs are not its attempts": """
        SELECT job.id, job.attempt, count(run.id), array_agg(run.attempt ORDER BY run.attempt)
        FROM django_jobs_job AS job LEFT JOIN django_jobs_run AS run ON run.job_id = job.id
        GROUP BY job.id
        HAVING job.attempt <> count(run.id) OR job.attempt <> coalesce(max(run.attempt), 0)""",
    "a job that succeeded otherwise than once, at its last attempt": """
        SELECT job.id, job.attempt, array_agg(run.attempt) FROM django_jobs_job AS job
        LEFT JOIN django_jobs_run AS run ON run.job_id = job.id AND run.outcome = 'succeeded'
        WHERE job.status = 'succeeded'
        GROUP BY job.id HAVING count(run.id) <> 1 OR max(run.attempt) <> job.attempt""",
    "a run that was claimed before the one before it had ended": """
        SELECT later.job_id, later.attempt, earlier.finished_at, later.claimed_at
        FROM django_jobs_run AS later JOIN django_jobs_run AS earlier
            ON earlier.job_id = later.job_id AND earlier.attempt = later.attempt - 1
        WHERE later.claimed_at < earlier.finished_at""",
    # One job for each due time, and none is missed.
    "a due time that made no job, or two": """
        SELECT due.at, tick.outcome, count(job.id)
        FROM (SELECT generate_series(min(due_at), max(due_at), interval '1 second') AS at
              FROM django_jobs_tick) AS due
        LEFT JOIN django_jobs_tick AS tick ON tick.due_at = due.at
        LEFT JOIN django_jobs_job AS job ON job.scheduled_for = due.at
        GROUP BY due.at, tick.outcome
        HAVING count(job.id) <> 1 OR tick.outcome IS DISTINCT FROM 'fired'""",
    "a worker that is still alive": """
        SELECT id, status FROM django_jobs_worker WHERE status IN ('running', 'draining')""",
    "a connection that was left open": """
        SELECT pid, state, left(query, 60) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()""",
}


def problems(cluster: Cluster, directory: Path, downtime: float) -> Iterator[str]:
    """Each account that does not balance, with the first of its rows."""
    for name, sql in ROWS.items():
        rows = cluster.fetch(sql)
        if rows:
            yield f"{name}: {len(rows)}, such as {rows[:3]}"
    yield from _keys(cluster, directory)
    yield from _effects(cluster, directory)
    bound = LEASE + SWEEP + POLL + downtime + 2.2 * LEASE  # all others may have been stopped
    late = cluster.fetch(LOST_TOO_LATE, [bound])
    if late:
        yield f"a loss that was seen after more than {bound:.1f} s: {late[:3]}"
    for log in sorted(directory.glob("worker-*.log")):
        if "Traceback" in log.read_text(errors="replace"):
            yield f"a traceback in {log}"


def _keys(cluster: Cluster, directory: Path) -> Iterator[str]:
    told: dict[str, list[str]] = json.loads((directory / "keys.json").read_text())
    sql = "SELECT idempotency_key FROM django_jobs_job WHERE schedule_id IS NULL"
    there = {key for (key,) in cluster.fetch(sql)}
    missing = set(told["kept"]) - there
    if missing:
        yield f"acknowledged and not there: {len(missing)}, such as {sorted(missing)[:3]}"
    back = set(told["dropped"]) & there
    if back:
        yield f"rolled back and there: {sorted(back)[:3]}"
    unknown = there - set(told["kept"])
    if unknown:
        yield f"there and never acknowledged: {sorted(map(str, unknown))[:3]}"


def _effects(cluster: Cluster, directory: Path) -> Iterator[str]:
    lines = [line.split() for line in (directory / "effects").read_text().splitlines()]
    effects = Counter(int(job) for job, _, _ in lines)
    attempts = Counter((int(job), int(attempt)) for job, attempt, _ in lines)
    rows: list[tuple[Any, ...]] = cluster.fetch(
        "SELECT job.id, job.status, count(run.id), count(run.id) FILTER (WHERE run.outcome IN"
        " ('lost', 'released', 'timed_out', 'failed')) FROM django_jobs_job AS job"
        " LEFT JOIN django_jobs_run AS run ON run.job_id = job.id GROUP BY job.id"
    )
    none = [job for job, status, _, _ in rows if status == "succeeded" and not effects[job]]
    if none:
        yield f"succeeded and never ran: {none[:3]}"
    twice = [attempt for attempt, count in attempts.items() if count > 1]
    if twice:
        yield f"an attempt that ran twice: {twice[:3]}"
    ran_by = {(int(job), int(attempt)): tree for job, attempt, tree in lines}
    stolen = [
        (job, attempt, worker)
        for job, attempt, worker in cluster.fetch(SUCCEEDED)
        if ran_by.get((job, attempt)) != worker
    ]
    if stolen:
        yield f"a success that was written by another than who ran it: {stolen[:3]}"
    many = [(job, effects[job], runs) for job, _, runs, _ in rows if effects[job] > runs]
    if many:
        yield f"ran more often than it has runs: {many[:3]}"
    unexplained = [
        (job, effects[job], lost)
        for job, status, _, lost in rows
        if status == "succeeded" and effects[job] - 1 > lost
    ]
    if unexplained:
        yield f"ran again without a reason: {unexplained[:3]}"
