"""Which stored payloads today's code cannot read, of jobs that have not ended and of schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any

from django.db import connections

from .. import registry
from ..api import payload_problem
from ..conf import conf
from ..exceptions import PayloadError

MOST_LISTED_PROBLEMS = 1_000
"""Problems that are listed one by one, and as many schedules."""

# Payloads with the same names in them are of one form: one is tried for all. By COPY, row by row:
# each brings a payload of up to a megabyte along, and what a cursor reads, as what a subquery finds
# the names with, PostgreSQL does in one process, which takes twice as long.
JOBS = """
COPY (
SELECT job_type, payload_version, jobs, lowest,
    (SELECT payload::text FROM django_jobs_job WHERE id = lowest)
FROM (
    SELECT job_type, payload_version, count(*) AS jobs, min(id) AS lowest
    FROM (
        SELECT id, job_type, payload_version, CASE WHEN jsonb_typeof(payload) = 'object'
            THEN jsonb_path_query_array(payload, 'strict $.keyvalue().key') END AS names
        FROM django_jobs_job
        WHERE status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
    ) AS live
    GROUP BY job_type, payload_version, names
) AS form
) TO STDOUT
"""
# What the code declares is written anew by migrate, or disabled.
SCHEDULES = """
COPY (
SELECT name, job_type, payload_version, payload::text FROM django_jobs_schedule
WHERE enabled AND NOT declared
ORDER BY id
) TO STDOUT
"""


@dataclass(slots=True, kw_only=True)
class UnreadableJobs:
    """Live jobs of one type and version with one problem; ``lowest_id`` is the first of them."""

    job_type: str
    version: int
    jobs: int
    lowest_id: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableSchedule:
    """A schedule that today's code cannot fire."""

    name: str
    job_type: str
    version: int
    problem: str


@dataclass(slots=True)
class PayloadCheck:
    """What was looked at, and what of it cannot be read: counted to the end, told one by one up to
    1,000 of each."""

    jobs: int = 0
    schedules: int = 0
    unreadable_jobs: int = 0
    unreadable_schedules: int = 0
    listed_jobs: list[UnreadableJobs] = field(default_factory=list)
    listed_schedules: list[UnreadableSchedule] = field(default_factory=list)


def check_pending() -> PayloadCheck:
    """Try one payload of each form, in two statements that change nothing.

    Of each job type and version, payloads with the same names in them are one form. A value that
    only some of them have is not seen here.
    """
    report = PayloadCheck()
    known: dict[tuple[str, int, str], UnreadableJobs] = {}
    types = ("text", "int2", "int8", "int8", "text")
    for job_type, version, jobs, lowest, payload in _stream(JOBS, types):
        report.jobs += jobs
        problem = _problem(job_type, version, payload)
        if problem is None:
            continue
        report.unreadable_jobs += jobs
        key = job_type, version, problem
        if key in known:
            known[key].jobs += jobs
            known[key].lowest_id = min(known[key].lowest_id, lowest)
        elif len(known) < MOST_LISTED_PROBLEMS:
            known[key] = UnreadableJobs(
                job_type=job_type, version=version, jobs=jobs, lowest_id=lowest, problem=problem
            )
    _check_schedules(report)
    report.listed_jobs = sorted(known.values(), key=lambda one: (one.job_type, one.lowest_id))
    return report


def _check_schedules(report: PayloadCheck) -> None:
    declared = registry.schedules()
    types = ("text", "text", "int2", "text")
    for name, job_type, version, payload in _stream(SCHEDULES, types):
        if name in declared:
            continue
        report.schedules += 1
        problem = _problem(job_type, version, payload) or _not_to_be_stored(
            job_type, version, payload
        )
        if problem is None:
            continue
        report.unreadable_schedules += 1
        if len(report.listed_schedules) < MOST_LISTED_PROBLEMS:
            report.listed_schedules.append(
                UnreadableSchedule(name=name, job_type=job_type, version=version, problem=problem)
            )


def _stream(sql: str, types: Sequence[str]) -> Iterator[list[Any]]:
    """The rows, by way of a file: while a COPY goes on nothing else can be asked on its connection,
    and the upgrades that are tried on them may ask something."""
    connection = connections[conf().database]
    with TemporaryFile("w+") as file:
        with (
            connection.cursor() as cursor,
            connection.wrap_database_errors,
            cursor.copy(sql) as copy,
        ):
            copy.set_types(types)
            file.writelines(json.dumps(row) + "\n" for row in copy.rows())
        file.seek(0)
        yield from map(json.loads, file)


def _problem(job_type: str, version: int, text: str | None) -> str | None:
    if text is None:  # it has ended meanwhile, and was deleted
        return None
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as error:  # a row that was not written by enqueue
        return f"its payload cannot be read ({type(error).__name__})"
    return payload_problem(job_type, version, payload)


def _not_to_be_stored(job_type: str, version: int, text: str) -> str | None:
    """What a schedule fires is stored anew, as today's code has it."""
    known = registry.get(job_type)
    try:
        known.encoded(known.upgraded(json.loads(text), version), "payload")
    except PayloadError as error:
        return str(error)
    return None
