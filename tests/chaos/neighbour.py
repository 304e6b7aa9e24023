"""Another database of the same server, which is flushed again and again under two workers.

Each time all ids begin at 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.clusters import Cluster

NAME = "neighbour"
COMMANDS = 2

JOBS = """
SELECT job.id, job.payload->>'key', job.status, job.attempt,
    (SELECT count(*) FROM django_jobs_run AS run WHERE run.job_id = job.id)
FROM django_jobs_job AS job ORDER BY job.id
"""

BEFORE_ITS_JOB = """
SELECT run.job_id, run.attempt, run.started_at, job.created_at FROM django_jobs_run AS run
JOIN django_jobs_job AS job ON job.id = run.job_id
WHERE run.started_at < job.created_at - interval '10 milliseconds'
"""


def url(of: str) -> str:
    """The other database of the server."""
    return urlunsplit(urlsplit(of)._replace(path=f"/{NAME}"))


def make(cluster: Cluster, environment: dict[str, str]) -> dict[str, str]:
    """Create it, with the tables. Returns the environment of its processes."""
    cluster.execute(f"CREATE DATABASE {NAME}")
    environment = {
        **environment,
        "DATABASE_URL": url(cluster.url),
        "TEST_DATABASE_NAME": NAME,
        "CHAOS_WITHOUT_SCHEDULES": "1",
    }
    migrate = [sys.executable, "-m", "django", "migrate", "-v0", "--run-syncdb", "--skip-checks"]
    subprocess.run(migrate, check=True, env=environment)
    return environment


def problems(cluster: Cluster, directory: Path) -> Iterator[tuple[int, str]]:
    """After the last flush all is as in a new database; and no flush made anything run twice."""
    with psycopg.connect(url(cluster.url), autocommit=True) as connection:
        jobs = connection.execute(JOBS).fetchall()
        early = connection.execute(BEFORE_ITS_JOB).fetchall()
    wanted = set(json.loads((directory / "flushes.json").read_text())["last"])
    found = {key for _, key, *_ in jobs}
    if found != wanted or len(jobs) != len(wanted):
        yield 13, f"{len(jobs)} jobs after the last flush, where {len(wanted)} were asked for"
    undone = [job for job in jobs if job[2] != "succeeded" or job[3] != job[4]]
    if undone:
        yield 13, f"not done, or with other runs than attempts: {len(undone)}, such as {undone[:3]}"
    if early:
        yield 13, f"ended by the run of a job before the flush: {len(early)}, such as {early[:3]}"
    spans = executions(directory / "effects.guests")
    never = [key for key in wanted if key not in spans]
    if never:
        yield 13, f"succeeded and never ran: {len(never)}, such as {never[:3]}"
    doubled = [key for key, found in spans.items() if overlap(found)]
    if doubled:
        yield 13, f"ran twice at once: {len(doubled)}, such as {doubled[:3]}"


def counted(directory: Path) -> dict[str, int]:
    """How often it was flushed, and what ran there."""
    flushes = json.loads((directory / "flushes.json").read_text())["flushes"]
    ran = executions(directory / "effects.guests").values()
    return {"flushes of the other database": flushes, "jobs that ran there": sum(map(len, ran))}


def executions(file: Path) -> dict[str, list[tuple[float, float]]]:
    """From when to when each key ran. One that did not come to its end is an instant."""
    begun: dict[tuple[str, int], float] = {}
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in file.read_text().splitlines():
        what, key, pid, at = line.split()
        if what == "begin":
            if (key, int(pid)) in begun:
                first = begun[key, int(pid)]
                spans[key].append((first, first))
            begun[key, int(pid)] = float(at)
        else:
            spans[key].append((begun.pop((key, int(pid))), float(at)))
    for (key, _), at in begun.items():
        spans[key].append((at, at))
    return spans


def overlap(spans: list[tuple[float, float]]) -> bool:
    """Whether one began before another of the same job had ended."""
    ordered = sorted(spans)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ordered))
