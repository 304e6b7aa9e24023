"""Finds jobs that are ready, or blocked at their gates, that no live worker of their queue can
run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..models.database import fetch_named

# The first of each queue, of those that are blocked at their gates, and of the scheduled ones, if
# they are asked for. Gates pass over what nobody can run.
FIRST = """
SELECT queue.name AS queue, head.job_type, head.payload_version
FROM django_jobs_queue AS queue CROSS JOIN LATERAL (
    SELECT job.job_type, job.payload_version FROM django_jobs_job AS job
    WHERE job.status = 'ready' AND job.queue = queue.name
    ORDER BY job.rank, job.id LIMIT %(most)s) AS head
UNION ALL
(SELECT queue, job_type, payload_version FROM django_jobs_job_live
 WHERE status = 'blocked' AND gates IS NOT NULL
 ORDER BY gates, rank, id LIMIT %(most)s)
UNION ALL
(SELECT queue, job_type, payload_version FROM django_jobs_job WHERE status = 'scheduled'
 ORDER BY available_at LIMIT %(upcoming)s)
"""


def unclaimable_among(first: str) -> str:
    """The query that finds them among the jobs of the query ``first``."""
    # Claims skip what their worker cannot run, so such jobs collect at the head of a queue. Jobs of
    # a queue that no living worker serves wait for another reason: for them ``reads`` is null.
    # Workers of one release are alike: each kind is looked at once. They are told apart by the
    # hashes of their lists, of 64 bits each: to compare the lists themselves took 7 ms for 200
    # workers, and this takes 3.
    return f"""
WITH alike AS MATERIALIZED (
    SELECT DISTINCT ON (jsonb_hash_extended(queues, 0), jsonb_hash_extended(job_types, 0),
        payload_versions) queues, job_types, payload_versions
    FROM django_jobs_worker
    WHERE status IN ('running', 'draining') AND lease_expires_at >= clock_timestamp()
)
SELECT seen.job_type, CASE WHEN alive.known THEN seen.version END AS version,
    sum(seen.ready)::bigint AS ready
FROM (
    SELECT queue, job_type, payload_version AS version, count(*) AS ready
    FROM ({first}) AS first GROUP BY 1, 2, 3) AS seen
CROSS JOIN LATERAL (
    SELECT bool_or(worker.job_types @> to_jsonb(seen.job_type)) AS known,
        bool_or(worker.job_types @> to_jsonb(seen.job_type) AND (worker.payload_versions IS NULL OR
            seen.version <= coalesce((worker.payload_versions -> seen.job_type::text)::integer, 1))
        ) AS reads
    FROM alike AS worker
    WHERE worker.queues @> to_jsonb(seen.queue)) AS alive
WHERE NOT alive.reads
GROUP BY 1, 2
ORDER BY (CASE WHEN alive.known THEN seen.version END) IS NULL, 3 DESC, 1, 2
LIMIT 200
"""


UNCLAIMABLE = unclaimable_among(FIRST)

MOST_LOOKED_AT = 5_000
"""Jobs of each queue, and of all that are blocked at gates, whose type and version are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTypeBacklog:
    """Jobs of a type that no living worker of their queue has a handler for. ``ready`` counts them
    among the first 5,000 ready ones of each queue, and 5,000 that are blocked at their gates."""

    job_type: str
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadVersion:
    """Jobs of a known type whose payload is newer than any living worker of their queue reads.
    ``ready`` counts them as for an unknown type."""

    job_type: str
    version: int
    ready: int


Backlogs = tuple[tuple[UnknownTypeBacklog, ...], tuple[UnreadVersion, ...]]


def take_unclaimable(most: int = MOST_LOOKED_AT, upcoming: int = 0) -> Backlogs:
    """The job types and the payload versions that no living worker of their queue can run, most
    jobs first. At most 200 of both together, versions before types; none while no worker lives.
    ``upcoming`` scheduled jobs, which are due next, count as if they were ready."""
    return backlogs_of(fetch_named(UNCLAIMABLE, {"most": most, "upcoming": upcoming}))


def backlogs_of(rows: Sequence[Mapping[str, Any]]) -> Backlogs:
    """The rows of ``UNCLAIMABLE``: those without a version are of unknown job types."""
    return (
        tuple(
            UnknownTypeBacklog(job_type=row["job_type"], ready=row["ready"])
            for row in rows
            if row["version"] is None
        ),
        tuple(UnreadVersion(**row) for row in rows if row["version"] is not None),
    )
