"""What must hold when all faults are over. An account that does not balance says which rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.clusters import Cluster

from . import edits

Problem = tuple[int, str]
"""The number of an account that does not balance, and what does not."""

ACCOUNTS = {
    1: "every acknowledged key is there once, and none that was rolled back",
    2: "all jobs end in time: poison pills dead, all others succeeded",
    3: "a transactional effect is there once for each job that succeeded",
    4: "an external effect is there at least once, and each repetition has its reason",
    5: "every attempt has its run, one after the other; one success for each job",
    6: "no success is written by another than who held the job",
    7: "recovery takes no longer than promised",
    8: "one job for each due time of the schedule",
    9: "no process, connection or file is left behind",
    10: "nothing unexpected in the workers' logs",
    12: "no handler finds another's setting, role or lock on its connection",
    13: "a flush of another database doubles and loses nothing, here or there",
    14: "no process that a handler forked outlives it",
    15: "a worker that cannot have the connections it needs claims nothing and says so",
    16: "what was cancelled before it began never runs",
    17: "no row is lost or doubled while partitions are made and dropped",
    18: "no more jobs of a concurrency key are ready or running than it has slots",
    19: "the same for a resource",
    20: "no more jobs start in any window than burst and rate allow",
    21: "the same for a tenant as for a key",
    22: "each step exists once and ends as its run says, and no workflow is stuck",
    23: "an operation on all jobs that match changes each once, counts it, and skips none",
    24: "a job that no worker can run yet holds no slot, and keeps nobody waiting",
    25: "what is stopped by force is cancelled or had succeeded, and never runs again",
    26: "a schedule that is edited leaves out no due time of any of its rules",
    27: "each file to which a job refers is there",
    28: "each client is called at the end of its job, once for each attempt at most",
    29: "all jobs of one order have the answer of one charge",
    30: "each begin and each end of a situation is sent once, by one worker at a time",
}
"""The eleventh is the negative control."""

ROWS = (
    (
        1,
        "a key that two jobs bear",
        """
        SELECT idempotency_key, count(*) FROM django_jobs_job
        WHERE idempotency_key IS NOT NULL GROUP BY 1 HAVING count(*) > 1""",
    ),
    (
        2,
        "a job that has not ended",
        """
        SELECT id, status, job_type, attempt FROM django_jobs_job
        WHERE status NOT IN ('succeeded', 'dead', 'cancelled')""",
    ),
    (
        2,
        "a poison pill that is not dead after three crashes",
        """
        SELECT id, status, crashes FROM django_jobs_job
        WHERE job_type = 'chaos.poison' AND (status <> 'dead' OR crashes <> 3)""",
    ),
    (
        2,
        "an innocent job that is not done",
        """
        SELECT id, status, job_type, reason FROM django_jobs_job
        WHERE job_type NOT IN ('chaos.poison', 'chaos.cancelled', 'chaos.forced')
          AND workflow_run_id IS NULL AND job_type NOT LIKE 'chaos.bulk%'
          AND status <> 'succeeded'""",
    ),
    (
        3,
        "a transactional effect that is not there once",
        """
        SELECT job.id, job.status, count(mark.id) FROM django_jobs_job AS job
        LEFT JOIN chaos_mark AS mark ON mark.job_id = job.id
        WHERE job.job_type IN ('chaos.inside', 'chaos.adds_inside') GROUP BY job.id, job.status
        HAVING count(mark.id) <> CASE WHEN job.status = 'succeeded' THEN 1 ELSE 0 END""",
    ),
    (
        5,
        "a job whose runs are not its attempts",
        """
        SELECT job.id, job.attempt, count(run.id), array_agg(run.attempt ORDER BY run.attempt)
        FROM django_jobs_job AS job LEFT JOIN django_jobs_run AS run ON run.job_id = job.id
        GROUP BY job.id, job.attempt
        HAVING job.attempt <> count(run.id) OR job.attempt <> coalesce(max(run.attempt), 0)""",
    ),
    (
        5,
        "a run without a job",
        """
        SELECT run.job_id, run.attempt FROM django_jobs_run AS run
        WHERE NOT EXISTS (SELECT 1 FROM django_jobs_job AS job WHERE job.id = run.job_id)""",
    ),
    (
        5,
        "a job that succeeded otherwise than once",
        """
        SELECT job.id, job.attempt, array_agg(run.attempt) FROM django_jobs_job AS job
        LEFT JOIN django_jobs_run AS run ON run.job_id = job.id AND run.outcome = 'succeeded'
        GROUP BY job.id, job.attempt, job.status
        HAVING count(run.id) <> CASE WHEN job.status = 'succeeded' THEN 1 ELSE 0 END""",
    ),
    (
        5,
        "a run that was claimed before the one before it had ended",
        """
        SELECT later.job_id, later.attempt, earlier.finished_at, later.claimed_at
        FROM django_jobs_run AS later JOIN django_jobs_run AS earlier
            ON earlier.job_id = later.job_id AND earlier.attempt = later.attempt - 1
        WHERE later.claimed_at < earlier.finished_at""",
    ),
    # A start is counted back on the worker's monotonic clock from an end on the server's, which
    # may be slewed meanwhile: by less than ten milliseconds in as many seconds. A late worker's
    # handler had started seconds before.
    (
        5,
        "a run that started before it was claimed",
        """
        SELECT job_id, attempt, outcome, claimed_at, started_at FROM django_jobs_run
        WHERE started_at < claimed_at - interval '10 milliseconds' OR finished_at < claimed_at""",
    ),
    (
        6,
        "a success that is not the job's last attempt",
        """
        SELECT job.id, job.attempt, run.attempt FROM django_jobs_job AS job
        JOIN django_jobs_run AS run ON run.job_id = job.id AND run.outcome = 'succeeded'
        WHERE run.attempt <> job.attempt""",
    ),
    (
        8,
        "a job of the schedule without its tick",
        """
        SELECT job.id, job.scheduled_for FROM django_jobs_job AS job
        LEFT JOIN django_jobs_tick AS tick ON tick.job_id = job.id
            AND tick.due_at = job.scheduled_for AND tick.outcome = 'fired'
        WHERE (job.schedule_id IS NOT NULL) <> (tick.id IS NOT NULL)""",
    ),
    (
        26,
        "a due time of an edited schedule without its one job, or of a former rule",
        edits.PROBLEM,
    ),
    (
        9,
        "a worker that is still alive",
        """
        SELECT id, status FROM django_jobs_worker WHERE status IN ('running', 'draining')""",
    ),
    # One that is younger is of the account before this one: the server has yet to end it.
    (
        9,
        "a connection that was left open",
        """
        SELECT pid, state, left(query, 60) FROM pg_stat_activity
        WHERE datname = current_database()
          AND backend_start < clock_timestamp() - interval '1 second'""",
    ),
)

# The steps of a workflow have none, but a job that became one because it spawned.
KEYS = """
SELECT idempotency_key FROM django_jobs_job
WHERE schedule_id IS NULL AND (workflow_run_id IS NULL OR idempotency_key IS NOT NULL)
"""

# From the first due time, which was written with the schedule, to the one that was next when it was
# stopped: no worker has a say in either.
DUE = """
SELECT due.at, tick.outcome, count(job.id)
FROM generate_series(to_timestamp(%s), %s::timestamptz - interval '1 second',
        interval '1 second') AS due (at)
FULL JOIN (
    SELECT tick.* FROM django_jobs_tick AS tick
    JOIN django_jobs_schedule AS schedule ON schedule.id = tick.schedule_id
    WHERE schedule.name = 'every second'
) AS tick ON tick.due_at = due.at
LEFT JOIN django_jobs_job AS job ON job.scheduled_for = coalesce(due.at, tick.due_at)
    AND job.job_type = 'chaos.every_second'
GROUP BY due.at, tick.due_at, tick.outcome
HAVING count(job.id) <> 1 OR tick.outcome IS DISTINCT FROM 'fired' OR due.at IS NULL
"""


def problems(cluster: Cluster, directory: Path, next_due: object) -> Iterator[Problem]:
    """What does not balance among the rows. ``next_due`` is the due time at which the schedule was
    stopped."""
    for number, name, sql in ROWS:
        rows = cluster.fetch(sql)
        if rows:
            yield number, f"{name}: {len(rows)}, such as {rows[:3]}"
    written = [json.loads(file.read_text()) for file in directory.glob("keys-*.json")]
    there = {key for (key,) in cluster.fetch(KEYS)}
    kept = {key for one in written for key in one["kept"]}
    dropped = {key for one in written for key in one["dropped"]}
    for name, keys in {
        "acknowledged and not there": kept - there,
        "rolled back and there": dropped & there,
        "there and never acknowledged": there - kept,
    }.items():
        if keys:
            yield 1, f"{name}: {len(keys)}, such as {sorted(map(str, keys))[:3]}"
    (first_due,) = [one["first_due"] for one in written if "first_due" in one]
    missed = cluster.fetch(DUE, [first_due, next_due])
    if missed or next_due is None:
        yield 8, f"due times without their one job: {len(missed)}, such as {missed[:3]}"
