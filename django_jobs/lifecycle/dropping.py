"""succeeded, cancelled -> gone.

Drops a partition of the history, or of runs, after its retention.
"""

from __future__ import annotations

from ..models.database import execute
from .history import (
    JOBS,
    RUNS,
    Partition,
    execute_with_names,
    fetch_with_names,
    in_a_moment,
    with_names,
)
from .pruning import PAGE

DETACH = "ALTER TABLE {table} DETACH PARTITION {name}"
DROP = "DROP TABLE {name}"

PRUNE_PROGRESS = """
DELETE FROM django_jobs_progress WHERE job_id = ANY(ARRAY(
    SELECT job.id FROM django_jobs_progress AS progress JOIN {name} AS job
        ON job.id = progress.job_id AND job.workflow_run_id IS NULL
    LIMIT %(page)s))
"""
PRUNE_RECEIPTS = """
DELETE FROM django_jobs_receipt WHERE id = ANY(ARRAY(
    SELECT receipt.id FROM django_jobs_receipt AS receipt JOIN {name} AS job
        ON job.id = receipt.job_id AND job.workflow_run_id IS NULL
    LIMIT %(page)s))
"""
PRUNE_RUNS = """
DELETE FROM django_jobs_run_default WHERE id = ANY(ARRAY(
    SELECT run.id FROM django_jobs_run_default AS run JOIN {name} AS job
        ON job.id = run.job_id AND job.workflow_run_id IS NULL
    LIMIT %(page)s))
"""

# A run that succeeded ended its job at the same moment, so their partitions end together. Any other
# run may be of a job that ended later, or of one that is live or dead.
OF_KEPT_JOBS = """
WITH page AS MATERIALIZED (
    SELECT id, job_id FROM {name}
    WHERE id > %(after)s AND outcome <> 'succeeded'
    ORDER BY id
    LIMIT %(page)s
)
SELECT page.id, EXISTS (SELECT 1 FROM {jobs} AS job WHERE job.id = page.job_id)
FROM page ORDER BY page.id
"""
MOST_KEPT_STEPS = 20_000
"""Steps that move to the default partition while others wait for the lock. A partition with more of
them stays until their runs have expired."""

# The steps of workflows stay as long as their run. There is an index on them.
COUNT_STEPS = """
SELECT count(*) FROM (
    SELECT 1 FROM {name} WHERE workflow_run_id IS NOT NULL LIMIT %(most)s) AS steps
"""
KEEP_STEPS = """
INSERT INTO django_jobs_job_history_default SELECT * FROM {name} WHERE workflow_run_id IS NOT NULL
"""
SUCCEEDED_STEPS = """
SELECT run.id FROM {name} AS run JOIN django_jobs_job_history_default AS job ON job.id = run.job_id
WHERE job.workflow_run_id IS NOT NULL AND run.outcome = 'succeeded'
"""
KEEP = "INSERT INTO django_jobs_run_default SELECT * FROM {name} WHERE id = ANY(%(ids)s::bigint[])"


def drop(
    partition: Partition, *, keeps_runs_of: str = "django_jobs_job", with_runs: bool = False
) -> bool:
    """Drop a partition with its rows; return False if it is in use, or has too many steps of
    workflows to keep.

    With a partition of jobs go their progress and receipts, and ``with_runs`` also those of their
    runs that are in the default partition. Steps move there, as do their runs, and those of a job
    that is still in the table ``keeps_runs_of``.
    """
    kept: list[int] = []
    last = 0
    if partition.table is JOBS:
        if _count_steps(partition.name) > MOST_KEPT_STEPS:
            return False
        runs = [PRUNE_RUNS] if with_runs else []
        for statement in (PRUNE_PROGRESS, PRUNE_RECEIPTS, *runs):
            text = with_names(statement, name=partition.name)
            while execute(text, {"page": PAGE}) >= PAGE:
                pass
    else:
        kept, last = _runs_of_kept_jobs(partition.name, keeps_runs_of)

    def work() -> bool:
        execute_with_names(DETACH, table=partition.table.name, name=partition.name)
        ids = kept
        if partition.table is RUNS:  # what arrived meanwhile; from now on nothing does
            late, _ = _runs_of_kept_jobs(partition.name, keeps_runs_of, after=last)
            ids = (
                kept
                + late
                + [id_ for (id_,) in fetch_with_names(SUCCEEDED_STEPS, {}, name=partition.name)]
            )
        elif _count_steps(partition.name):
            execute(with_names(KEEP_STEPS, name=partition.name), {})
        if ids:
            execute(with_names(KEEP, name=partition.name), {"ids": ids})
        execute_with_names(DROP, name=partition.name)
        return True

    return in_a_moment(work)


def _count_steps(name: str) -> int:
    ((steps,),) = fetch_with_names(COUNT_STEPS, {"most": MOST_KEPT_STEPS + 1}, name=name)
    return int(steps)


def _runs_of_kept_jobs(name: str, jobs: str, after: int = 0) -> tuple[list[int], int]:
    """The ids of those behind id ``after``, and the last id of all runs."""
    kept: list[int] = []
    while rows := fetch_with_names(
        OF_KEPT_JOBS, {"after": after, "page": PAGE}, name=name, jobs=jobs
    ):
        kept += [id_ for id_, is_kept in rows if is_kept]
        after = rows[-1][0]
    return kept, after
