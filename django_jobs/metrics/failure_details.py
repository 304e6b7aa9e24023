"""What the runs of failure groups say: the newest error, and which versions of the code failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ..models.database import fetch, fetch_named

MOST_RUNS = 200
"""The newest dead jobs of a group whose versions are looked at."""

DEAD_OF_GROUP = """job.status = 'dead' AND job.queue = one.queue
      AND job.job_type = %(job_type)s AND job.fingerprint = %(fingerprint)s"""
LAST_RUN = """run.job_id = dead.id AND run.attempt = dead.attempt
      AND run.finished_at = dead.finished_at"""
DIED = "job.id, job.attempt, job.finished_at"


def _newest(columns: str, most: int) -> str:
    """The newest dead jobs of a group, over its queues."""
    return f"""
newest AS MATERIALIZED (
    SELECT dead.* FROM unnest(%(queues)s::text[]) AS one (queue) CROSS JOIN LATERAL (
        SELECT {columns} FROM django_jobs_job AS job
        WHERE {DEAD_OF_GROUP}
          AND job.finished_at >= %(since)s::timestamptz
        ORDER BY job.queue DESC, job.job_type DESC, job.fingerprint DESC, job.finished_at DESC
        LIMIT {most}
    ) AS dead
    ORDER BY dead.finished_at DESC LIMIT {most}
)"""


def _by_version(newest: str) -> str:
    return f"""
WITH {newest}
SELECT worker.code_version, count(*), min(dead.finished_at), max(dead.finished_at)
FROM newest AS dead CROSS JOIN LATERAL (
    SELECT run.worker_id FROM django_jobs_run AS run WHERE {LAST_RUN} LIMIT 1
) AS run
JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
WHERE worker.code_version <> ''
GROUP BY 1
ORDER BY max(dead.finished_at) DESC
"""


NEWEST = f"""
WITH {_newest(DIED, 1)}
SELECT dead.id AS job, run.id AS run, run.error_type, run.error_code, run.error_message,
    run.traceback
FROM newest AS dead LEFT JOIN LATERAL (
    SELECT * FROM django_jobs_run AS run WHERE {LAST_RUN} LIMIT 1
) AS run ON true
"""
VERSIONS = _by_version(_newest(DIED, MOST_RUNS))
VERSIONS_OF_JOBS = _by_version(f"""
newest AS MATERIALIZED (
    SELECT {DIED} FROM django_jobs_job AS job
    WHERE job.id = ANY(%(jobs)s::bigint[]) AND job.status = 'dead'
)""")

# Of each group: the version in which the oldest dead job died, and the end of the newest traceback.
ROWS = f"""
SELECT one.place, oldest.code_version, oldest.finished_at, newest.traceback, newest.finished_at
FROM unnest(%(queues)s::text[], %(job_types)s::text[], %(fingerprints)s::text[])
    WITH ORDINALITY AS one (queue, job_type, fingerprint, place)
LEFT JOIN LATERAL (
    SELECT worker.code_version, dead.finished_at FROM (
        SELECT {DIED} FROM django_jobs_job AS job
        WHERE job.status = 'dead' AND job.queue = one.queue AND job.job_type = one.job_type
          AND job.fingerprint = one.fingerprint
        ORDER BY job.queue, job.job_type, job.fingerprint, job.finished_at LIMIT 1
    ) AS dead CROSS JOIN LATERAL (
        SELECT run.worker_id FROM django_jobs_run AS run WHERE {LAST_RUN} LIMIT 1
    ) AS run
    JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
) AS oldest ON true
LEFT JOIN LATERAL (
    SELECT right(run.traceback, 2000) AS traceback, dead.finished_at FROM (
        SELECT {DIED} FROM django_jobs_job AS job
        WHERE job.status = 'dead' AND job.queue = one.queue AND job.job_type = one.job_type
          AND job.fingerprint = one.fingerprint
        ORDER BY job.queue DESC, job.job_type DESC, job.fingerprint DESC, job.finished_at DESC
        LIMIT 1
    ) AS dead CROSS JOIN LATERAL (
        SELECT run.traceback FROM django_jobs_run AS run WHERE {LAST_RUN} LIMIT 1
    ) AS run
) AS newest ON true
"""


class RowDetails(NamedTuple):
    """Of one queue's jobs of a group: the version of the code in which the oldest dead one died,
    and when, and the end of the newest traceback, and when that was. Empty or None if unknown."""

    version: str
    since: datetime | None
    end: str
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestFailure:
    """The dead job of a group that died last. Its run, and what that says, are None if it was
    deleted."""

    job: int
    run: int | None
    error_type: str | None
    error_code: str | None
    error_message: str | None
    traceback: str | None


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """How many dead jobs died in a version of the code, and when."""

    version: str
    jobs: int
    first: datetime
    last: datetime


def newest_failure(job_type: str, fingerprint: str, queues: Sequence[str]) -> NewestFailure | None:
    """The dead job of a group that died last; None without dead jobs."""
    rows = fetch_named(NEWEST, _parameters(job_type, fingerprint, queues))
    return NewestFailure(**rows[0]) if rows else None


def code_versions(
    job_type: str, fingerprint: str, queues: Sequence[str], since: datetime | None = None
) -> list[CodeVersion]:
    """The versions in which the newest dead jobs of a group died, the latest first. Versions whose
    workers were deleted are missing."""
    rows = fetch(VERSIONS, _parameters(job_type, fingerprint, queues, since))
    return [CodeVersion(*row) for row in rows]


def code_versions_of(jobs: Sequence[int]) -> list[CodeVersion]:
    """The same for dead jobs by their ids."""
    return [CodeVersion(*row) for row in fetch(VERSIONS_OF_JOBS, {"jobs": list(jobs)})]


def rows_of(keys: Sequence[tuple[str, str, str]]) -> list[RowDetails]:
    """The details for each queue, job type and fingerprint."""
    queues, job_types, fingerprints = zip(*keys, strict=True) if keys else ((), (), ())
    parameters: Mapping[str, list[str]] = {
        "queues": list(queues),
        "job_types": list(job_types),
        "fingerprints": list(fingerprints),
    }
    found = {
        place: RowDetails(version or "", since, end or "", at)
        for place, version, since, end, at in fetch(ROWS, parameters)
    }
    return [found[place] for place in range(1, len(keys) + 1)]


def _parameters(
    job_type: str, fingerprint: str, queues: Sequence[str], since: datetime | None = None
) -> dict[str, object]:
    return {
        "job_type": job_type,
        "fingerprint": fingerprint,
        "queues": list(queues),
        "since": since or "-infinity",
    }
