"""Groups of failures: the dead jobs, and those that are being retried, by job type and fingerprint
of their last error.

Each group is found with one step in an index. What is counted is bounded, so that a million dead
jobs cost as much as a hundred thousand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import add
from typing import Any, NamedTuple

from django.utils import timezone

from ..lifecycle.dead_letters import queues_with_dead
from ..lifecycle.run_totals import FAILED
from ..models import Queue
from ..models.database import database_time, fetch, fetch_named
from .overview import LAST_RUN

Rows = Sequence[dict[str, Any]]

MOST_GROUPS = 500
"""Groups of one queue and job type that are looked for."""
MOST_COUNTED = 10_000
"""Jobs that are counted of one group."""
ALL_COUNTED = 100_000
"""Jobs that are counted of all groups, as long as each has ``FEWEST_COUNTED``."""
FEWEST_COUNTED = 200
BUCKETS = 28
"""Points of the curve of a group."""
CURVE = timedelta(days=7)
"""What the curve covers, unless a span is given."""


def _steps(status: str) -> str:
    """The groups of one status, found one after the other. A queue is compared afterwards: as a
    condition of the index it would begin each step at the first entry of the queue."""
    key = "job.queue, job.job_type, job.fingerprint"
    return f"""
RECURSIVE found AS (
    (SELECT {key}, 1 AS place FROM django_jobs_job_live AS job
     WHERE {status} AND job.queue >= coalesce(%(queue)s::text, '')
     ORDER BY {key} LIMIT 1)
    UNION ALL
    SELECT next.*, found.place + 1 FROM found CROSS JOIN LATERAL (
        SELECT {key} FROM django_jobs_job_live AS job
        WHERE {status} AND ({key}) > (found.queue, found.job_type, found.fingerprint)
        ORDER BY {key} LIMIT 1
    ) AS next
    WHERE found.place < %(most)s AND (%(queue)s::text IS NULL OR found.queue = %(queue)s)
), kept AS MATERIALIZED (
    SELECT queue, job_type, fingerprint FROM found
    WHERE %(queue)s::text IS NULL OR queue = %(queue)s
), bound AS MATERIALIZED (
    SELECT count(*) AS found, least({MOST_COUNTED}, greatest(
        {FEWEST_COUNTED}, {ALL_COUNTED} / greatest(count(*), 1))) AS most
    FROM kept
)"""


DEAD = "job.status = 'dead'"
RETRIED = "job.status = 'scheduled' AND job.failures > 0"
OF_GROUP = """job.queue = one.queue AND job.job_type = one.job_type
          AND job.fingerprint = one.fingerprint"""
OLDEST_FIRST = "ORDER BY job.queue, job.job_type, job.fingerprint, job.finished_at"
NEWEST_FIRST = f"{OLDEST_FIRST} DESC".replace(",", " DESC,")
IN_SPAN = "job.finished_at >= %(since)s::timestamptz"


def _dead_of(kept: str) -> str:
    """The dead jobs of the groups in ``kept``. The counts read entries of the index only. Where one
    stops, the curve has up to a fourteenth of that in each part."""
    return f"""
WITH {kept}
SELECT one.*, bound.*, counted.number,
    CASE WHEN counted.number <= bound.most THEN counted.buckets ELSE (
        SELECT json_object_agg(part, (
            SELECT count(*) FROM (
                SELECT FROM django_jobs_job_live AS job
                WHERE {DEAD} AND {OF_GROUP}
                  AND job.finished_at >= %(begin)s::timestamptz
                      + make_interval(secs => (part - 1) * %(span)s::float8 / {BUCKETS})
                  AND job.finished_at < %(begin)s::timestamptz
                      + make_interval(secs => part * %(span)s::float8 / {BUCKETS})
                LIMIT bound.most * 2 / {BUCKETS}
            ) AS few))::text
        FROM generate_series(1, {BUCKETS}) AS part
    ) END AS buckets,
    newest.finished_at AS last, newest.last_error, newest.reason, newest.at_most_once,
    (SELECT job.finished_at FROM django_jobs_job_live AS job
     WHERE {DEAD} AND {OF_GROUP} {OLDEST_FIRST} LIMIT 1) AS first
FROM kept AS one CROSS JOIN bound CROSS JOIN LATERAL (
    SELECT job.finished_at, job.last_error, job.reason, job.at_most_once
    FROM django_jobs_job_live AS job
    WHERE {DEAD} AND {OF_GROUP} AND {IN_SPAN} {NEWEST_FIRST} LIMIT 1
) AS newest CROSS JOIN LATERAL (
    SELECT sum(alike.number)::bigint AS number,
        json_object_agg(alike.bucket, alike.number)::text AS buckets
    FROM (
        SELECT least(width_bucket(died.seconds, 0, %(span)s::float8, {BUCKETS}), {BUCKETS})
                AS bucket,
            count(*) AS number
        FROM (
            SELECT date_part('epoch', job.finished_at - %(begin)s::timestamptz) AS seconds
            FROM django_jobs_job_live AS job
            WHERE {DEAD} AND {OF_GROUP} AND {IN_SPAN} {NEWEST_FIRST} LIMIT bound.most + 1
        ) AS died
        GROUP BY 1
    ) AS alike
) AS counted
"""


def _retried_of(kept: str) -> str:
    return f"""
WITH {kept}
SELECT one.*, bound.*,
    (SELECT count(*) FROM (
        SELECT FROM django_jobs_job_live AS job WHERE {RETRIED} AND {OF_GROUP}
        LIMIT bound.most + 1
     ) AS counted) AS number,
    newest.last_error, newest.reason, newest.at_most_once
FROM kept AS one CROSS JOIN bound CROSS JOIN LATERAL (
    SELECT job.last_error, job.reason, job.at_most_once FROM django_jobs_job_live AS job
    WHERE {RETRIED} AND {OF_GROUP} LIMIT 1
) AS newest
"""


GIVEN = """SELECT queue, %(job_type)s::text AS job_type, %(fingerprint)s::text AS fingerprint
    FROM unnest(%(queues)s::text[]) AS given (queue)"""
ONE_GROUP = f"""
kept AS MATERIALIZED (
    {GIVEN}
), bound AS MATERIALIZED (SELECT 1 AS found, {MOST_COUNTED} AS most)
"""
DEAD_GROUPS, RETRIED_GROUPS = _dead_of(_steps(DEAD)), _retried_of(_steps(RETRIED))
ONE_DEAD_GROUP, ONE_RETRIED_GROUP = _dead_of(ONE_GROUP), _retried_of(ONE_GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """The failures of one job type with one fingerprint.

    ``dead`` counts its dead jobs in the span, and ``retried`` those that wait for another attempt;
    ``dead_capped`` and ``retried_capped``: there are more. ``first`` is when the oldest of its dead
    jobs died, whatever the span; both times are None without dead jobs. ``trend`` counts the dead
    jobs in equal parts of the span of the curve, up to a limit in each if they are capped.
    ``error`` is the class and the first line of the newest error, or the reason without one.
    """

    job_type: str
    fingerprint: str
    queues: tuple[str, ...]
    error: str
    dead: int = 0
    dead_capped: bool = False
    retried: int = 0
    retried_capped: bool = False
    first: datetime | None = None
    last: datetime | None = None
    trend: tuple[int, ...] = (0,) * BUCKETS
    at_most_once: bool = False

    def __add__(self, other: FailureGroup) -> FailureGroup:
        newer = other if self.last is None or (other.last or self.last) > self.last else self
        return replace(
            newer,
            queues=tuple(sorted({*self.queues, *other.queues})),
            dead=self.dead + other.dead,
            dead_capped=self.dead_capped or other.dead_capped,
            retried=self.retried + other.retried,
            retried_capped=self.retried_capped or other.retried_capped,
            first=min((at for at in (self.first, other.first) if at), default=None),
            trend=tuple(map(add, self.trend, other.trend)),
            at_most_once=self.at_most_once or other.at_most_once,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The groups, the largest first. ``more``: there are groups that were not looked at."""

    groups: tuple[FailureGroup, ...]
    read_at: datetime
    more: bool = False


def take_failures(
    *,
    queue: str | None = None,
    span: timedelta | None = None,
    retried: bool = False,
    curve: timedelta = CURVE,
) -> Failures:
    """The groups of the dead jobs of one queue or of all that died in the last ``span``, or at any
    time. ``retried`` also counts the jobs that failed and wait for another attempt."""
    read_at = database_time()
    parameters = {"queue": queue, "most": MOST_GROUPS + 1, **_times(read_at, span, curve)}
    dead = fetch_named(DEAD_GROUPS, parameters)
    again = fetch_named(RETRIED_GROUPS, parameters) if retried else []
    return Failures(
        groups=_merged(dead[:MOST_GROUPS], again[:MOST_GROUPS]),
        read_at=read_at,
        more=any(rows and rows[0]["found"] > MOST_GROUPS for rows in (dead, again)),
    )


def take_failure(
    job_type: str, fingerprint: str, *, queue: str | None = None, span: timedelta | None = None
) -> Failures:
    """One group with the retried jobs; none if nothing has failed like this. Its dead jobs are
    those of one queue or of all that died in the last ``span``, or at any time."""
    read_at = database_time()
    queues = {*Queue.objects.names(), *queues_with_dead()} if queue is None else {queue}
    parameters = {
        "job_type": job_type,
        "fingerprint": fingerprint,
        "queues": sorted(queues),
        **_times(read_at, span, CURVE),
    }
    dead = fetch_named(ONE_DEAD_GROUP, parameters)
    retried = fetch_named(ONE_RETRIED_GROUP, parameters)
    return Failures(groups=_merged(dead, retried), read_at=read_at)


def _times(read_at: datetime, span: timedelta | None, curve: timedelta) -> dict[str, Any]:
    return {
        "since": "-infinity" if span is None else read_at - span,
        "begin": read_at - (span or curve),
        "span": (span or curve).total_seconds(),
    }


def _merged(dead: Rows, retried: Rows) -> tuple[FailureGroup, ...]:
    groups: dict[tuple[str, str], FailureGroup] = {}
    for group in (*map(_dead, dead), *map(_retried, retried)):
        key = group.job_type, group.fingerprint
        groups[key] = groups[key] + group if key in groups else group
    return tuple(sorted(groups.values(), key=_largest_first))


def _dead(row: dict[str, Any]) -> FailureGroup:
    counts = {int(bucket): number for bucket, number in json.loads(row["buckets"]).items()}
    return FailureGroup(
        **_common(row),
        dead=min(row["number"], row["most"]),
        dead_capped=row["number"] > row["most"],
        first=row["first"],
        last=row["last"],
        trend=tuple(counts.get(bucket, 0) for bucket in range(1, BUCKETS + 1)),
    )


def _retried(row: dict[str, Any]) -> FailureGroup:
    return FailureGroup(
        **_common(row),
        retried=min(row["number"], row["most"]),
        retried_capped=row["number"] > row["most"],
    )


def _common(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "job_type": row["job_type"],
        "fingerprint": row["fingerprint"],
        "queues": (row["queue"],),
        "error": row["last_error"] or row["reason"],
        "at_most_once": row["at_most_once"],
    }


def _largest_first(group: FailureGroup) -> tuple[int, int, str, str]:
    return -group.dead, -group.retried, group.job_type, group.fingerprint


MOST_ATTEMPTS = 10_000
"""Attempts of all versions that are counted."""
MOST_RUNS = 200
"""The newest dead jobs of a group whose versions are looked at."""

DIED = "SELECT job.id, job.attempt, job.finished_at FROM django_jobs_job_live AS job"


def _run(columns: str) -> str:
    """The last run of the job ``dead``."""
    return f"""LATERAL (
    SELECT {columns} FROM django_jobs_run AS run
    WHERE run.job_id = dead.id AND run.attempt = dead.attempt
      AND run.finished_at = dead.finished_at LIMIT 1) AS run"""


def _newest(most: int) -> str:
    """The newest dead jobs of a group, over its queues."""
    return f"""
newest AS MATERIALIZED (
    SELECT dead.* FROM ({GIVEN}) AS one CROSS JOIN LATERAL (
        {DIED} WHERE {DEAD} AND {OF_GROUP} AND {IN_SPAN} {NEWEST_FIRST} LIMIT {most}) AS dead
    ORDER BY dead.finished_at DESC LIMIT {most}
)"""


def _by_version(newest: str) -> str:
    return f"""
WITH {newest}
SELECT worker.code_version, count(*), min(dead.finished_at), max(dead.finished_at)
FROM newest AS dead CROSS JOIN {_run("run.worker_id")}
JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
WHERE worker.code_version <> ''
GROUP BY 1
ORDER BY max(dead.finished_at) DESC
"""


NEWEST = f"""
WITH {_newest(1)}
SELECT dead.id AS job, run.id AS run, run.error_type, run.error_code, run.error_message,
    run.traceback
FROM newest AS dead LEFT JOIN {_run("*")} ON true
"""
VERSIONS = _by_version(_newest(MOST_RUNS))
VERSIONS_OF_JOBS = _by_version(f"""
newest AS MATERIALIZED (
    {DIED} WHERE job.id = ANY(%(jobs)s::bigint[]) AND {DEAD}
)""")

# Of each group: the version in which the oldest dead job died, and the end of the newest traceback.
ROWS = f"""
SELECT one.place, oldest.code_version, oldest.finished_at, newest.traceback, newest.finished_at
FROM unnest(%(queues)s::text[], %(job_types)s::text[], %(fingerprints)s::text[])
    WITH ORDINALITY AS one (queue, job_type, fingerprint, place)
LEFT JOIN LATERAL (
    SELECT worker.code_version, dead.finished_at
    FROM ({DIED} WHERE {DEAD} AND {OF_GROUP} {OLDEST_FIRST} LIMIT 1) AS dead
    CROSS JOIN {_run("run.worker_id")}
    JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
) AS oldest ON true
LEFT JOIN LATERAL (
    SELECT right(run.traceback, 6000) AS traceback, dead.finished_at
    FROM ({DIED} WHERE {DEAD} AND {OF_GROUP} {NEWEST_FIRST} LIMIT 1) AS dead
    CROSS JOIN {_run("run.traceback")}
) AS newest ON true
"""
# The runs have no index by time, and their ids follow it.
ATTEMPTS = f"""
SELECT coalesce(worker.code_version, ''), count(*) FILTER (WHERE run.outcome IN {FAILED}), count(*)
FROM (
    SELECT id, worker_id, outcome FROM django_jobs_run
    WHERE id > {LAST_RUN} - %(newest)s
      AND finished_at >= %(day)s::timestamptz
      AND finished_at >= statement_timestamp() - interval '1 hour'
    ORDER BY id DESC LIMIT %(newest)s
) AS run LEFT JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
GROUP BY 1 ORDER BY max(run.id) DESC
"""
# How many groups began in each version: of each, that of the oldest dead job of all its queues.
BEGAN = f"""
WITH {_steps(DEAD)}
SELECT began.code_version, count(*) FROM (
    SELECT DISTINCT ON (one.job_type, one.fingerprint) worker.code_version
    FROM kept AS one CROSS JOIN LATERAL (
        {DIED} WHERE {DEAD} AND {OF_GROUP} {OLDEST_FIRST} LIMIT 1
    ) AS dead CROSS JOIN {_run("run.worker_id")}
    JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
    WHERE worker.code_version <> ''
    ORDER BY one.job_type, one.fingerprint, dead.finished_at
) AS began
GROUP BY 1
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
    """The dead job of a group that died last. Its run is None if it was deleted."""

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
    """The versions in which the newest dead jobs of a group died, the latest first."""
    rows = fetch(VERSIONS, _parameters(job_type, fingerprint, queues, since))
    return [CodeVersion(*row) for row in rows]


def code_versions_of(jobs: Sequence[int]) -> list[CodeVersion]:
    return [CodeVersion(*row) for row in fetch(VERSIONS_OF_JOBS, {"jobs": list(jobs)})]


def began_by_version() -> dict[str, int]:
    """How many of the first ``MOST_GROUPS`` groups of dead jobs began in each version."""
    return dict(fetch(BEGAN, {"queue": None, "most": MOST_GROUPS}))


def attempts_by_version() -> dict[str, tuple[int, int]]:
    """Of each version the attempts of the last hour that failed, and all: of the newest
    ``MOST_ATTEMPTS``. The version whose attempt ended last comes first. It is empty where the
    version is not known, or no worker was there."""
    # The partitions of other days are left out when the statement is planned.
    parameters = {"newest": MOST_ATTEMPTS, "day": timezone.now() - timedelta(days=1)}
    return {version: (failed, ended) for version, failed, ended in fetch(ATTEMPTS, parameters)}


def rows_of(keys: Sequence[tuple[str, str, str]]) -> list[RowDetails]:
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
