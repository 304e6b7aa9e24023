"""What is looked at every few seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import psutil

from tests.clusters import Cluster

from .trees import Tree

Sample = dict[str, float]
"""What was measured, by its name in ``verdict.BOUNDS``."""

MB = 1024 * 1024

# Of jobs and of runs, all partitions.
TABLES = """
SELECT sum(pg_table_size(relid)) FILTER (WHERE relname ~ '^django_jobs_job_'),
    sum(pg_table_size(relid)) FILTER (WHERE relname ~ '^django_jobs_run_'),
    sum(pg_table_size(relid)) FILTER (WHERE relname !~ '^django_jobs_(job|run)_'),
    sum(pg_indexes_size(relid)),
    sum(n_dead_tup)
FROM pg_stat_user_tables WHERE relname LIKE 'django\\_jobs\\_%'
"""
CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
BACKLOG = """
SELECT count(*) FROM django_jobs_job
WHERE status = 'ready' OR status = 'scheduled' AND available_at < now() - interval '2 s'
"""


def sample(cluster: Cluster, trees: Sequence[Tree]) -> Sample:
    """One look at the processes and at the database."""
    memory = descriptors = processes = 0
    for tree in trees:
        for process in tree.processes():
            with contextlib.suppress(psutil.Error):  # an isolated child has just ended
                info = process.memory_full_info()
                # What is shared is counted once: a fork shares nearly all of its parent.
                memory += getattr(info, "pss", info.uss)
                descriptors += process.num_fds()
                processes += 1
    jobs, runs, others, indexes, dead = (float(value) for value in cluster.fetch(TABLES)[0])
    return {
        "memory (MB)": memory / MB,
        "file descriptors": descriptors,
        "processes": processes,
        "connections": cluster.fetch(CONNECTIONS)[0][0],
        "table of jobs (MB)": jobs / MB,
        "table of runs (MB)": runs / MB,
        "other tables (MB)": others / MB,
        "indexes (MB)": indexes / MB,
        "dead rows": dead,
        "backlog": cluster.fetch(BACKLOG)[0][0],
    }
