"""Finds jobs that no live worker of their queue can run, and those whose type is quarantined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..lifecycle.backlog import MOST_COUNTED
from ..lifecycle.gate_limits import in_line
from ..models.database import fetch_named
from ..models.job import QUARANTINED
from ..models.worker import IS_ALIVE
from .limits import LINES

# Gates pass over what nobody can run.
FIRST_BLOCKED = """SELECT queue, job_type, payload_version FROM django_jobs_job_live
 WHERE status = 'blocked' AND gates IS NOT NULL
 ORDER BY gates, rank, id LIMIT %(most)s"""
# The first of each queue, of those that are blocked at their gates, and of the scheduled ones, if
# they are asked for.
FIRST = f"""
SELECT queue.name AS queue, head.job_type, head.payload_version
FROM django_jobs_queue AS queue CROSS JOIN LATERAL (
    SELECT job.job_type, job.payload_version FROM django_jobs_job_live AS job
    WHERE job.status = 'ready' AND job.queue = queue.name
    ORDER BY job.rank, job.id LIMIT %(most)s) AS head
UNION ALL
({FIRST_BLOCKED})
UNION ALL
(SELECT queue, job_type, payload_version FROM django_jobs_job_live WHERE status = 'scheduled'
 ORDER BY available_at LIMIT %(upcoming)s)
"""


def unclaimable_among(first: str) -> str:
    """The query that finds them among the jobs of the query ``first``."""
    # Claims skip what their worker cannot run, so such jobs collect at the head of a queue. Jobs of
    # a queue that no living worker serves wait for another reason: for them ``reads`` is null.
    # Workers of one release are alike: each kind is looked at once. They are told apart by the
    # hashes of their lists, of 64 bits each: to compare the lists themselves took 7 ms for 200
    # workers, and this takes 3. What nothing is appended to is unpacked once, not for each kind of
    # job.
    return f"""
WITH alike AS MATERIALIZED (
    SELECT queues || '[]' AS queues, job_types || '[]' AS job_types, payload_versions FROM (
        SELECT DISTINCT ON (jsonb_hash_extended(queues, 0), jsonb_hash_extended(job_types, 0),
            payload_versions) queues, job_types, payload_versions
        FROM django_jobs_worker AS worker WHERE {IS_ALIVE}) AS kind
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


# Jobs that wait at their gates have no index by type. So the first of each line are read, once for
# all quarantines, and not at all if there is none.
SHARE = "greatest(%(head)s / (SELECT count(*) FROM waiting_line), 1)"
AT_GATES = f"""at_gates AS MATERIALIZED (
    SELECT line.gates, job.job_type FROM waiting_line AS line CROSS JOIN LATERAL (
        SELECT job.job_type FROM django_jobs_job_live AS job {in_line()} LIMIT {SHARE}) AS job
)"""
FIRST_OF_LINES = f"""
waiting_line AS MATERIALIZED ({LINES.replace("%(most)s", "%(lines)s")}), {AT_GATES}"""
FIRST_AT_GATES = {"lines": 1_000, "head": 10_000}
"""How many lines are read, and how many jobs of all of them together."""

BLOCKED_AT_GATES = (
    f"""(WITH {FIRST_OF_LINES}
SELECT count(*) FROM at_gates WHERE at_gates.job_type = django_jobs_quarantine.job_type
    AND django_jobs_quarantine.lifted_at IS NULL)"""
    % FIRST_AT_GATES
)
"""For a queryset of quarantines: the jobs of each that wait at their gates."""


def quarantined_up_to(most: str) -> str:
    """An expression about a row of ``quarantine``, after :data:`AT_GATES`: the jobs that it blocks,
    of which those that are not at their gates are counted by their index."""
    return f"""(SELECT count(*) FROM (
        SELECT FROM django_jobs_job_live AS job
        WHERE job.status = 'blocked' AND job.reason = '{QUARANTINED}'
          AND job.job_type = quarantine.job_type
        ORDER BY job.job_type, job.id LIMIT {most}) AS counted)
    + (SELECT count(*) FROM at_gates WHERE at_gates.job_type = quarantine.job_type)"""


QUARANTINES = f"""
WITH {FIRST_OF_LINES}
SELECT quarantine.job_type,
    extract(epoch FROM clock_timestamp() - quarantine.since)::float8 AS since_seconds,
    quarantine.reason, quarantine.by,
    {quarantined_up_to("%(most)s")} AS blocked,
    (SELECT count(*) FROM waiting_line) >= %(lines)s OR EXISTS (
        SELECT FROM at_gates GROUP BY gates HAVING count(*) >= {SHARE}) AS more_blocked
FROM django_jobs_quarantine AS quarantine
WHERE quarantine.lifted_at IS NULL
ORDER BY quarantine.job_type
LIMIT 1000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSnapshot:
    """A job type that has been quarantined for ``since_seconds``. ``blocked`` counts its jobs and
    stops at 100,000; with ``more_blocked``, more of them may wait at their gates. ``by`` is empty
    if a worker quarantined it."""

    job_type: str
    since_seconds: float
    reason: str
    by: str
    blocked: int
    more_blocked: bool

    @property
    def blocked_text(self) -> str:
        """How many jobs it blocks: ``12``, or ``12+`` if there may be more."""
        more = self.more_blocked and self.blocked < MOST_COUNTED
        return capped(self.blocked) + ("+" if more else "")


PARAMETERS = {"most": MOST_COUNTED, **FIRST_AT_GATES}


def take_quarantines() -> tuple[QuarantineSnapshot, ...]:
    """The first 1,000 quarantined job types, by name."""
    return tuple(QuarantineSnapshot(**row) for row in fetch_named(QUARANTINES, PARAMETERS))


def capped(count: int, most: int = MOST_COUNTED) -> str:
    """``12``, or ``100000+`` if counting stopped there."""
    return f"{count}+" if count >= most else str(count)
