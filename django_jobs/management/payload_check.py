"""Finds the live jobs and schedules whose payloads the current code cannot read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from tempfile import TemporaryFile
from typing import Any

from django.db import connections

from .. import registry
from ..api import stored_payload_problem
from ..conf import conf
from ..exceptions import PayloadError
from ..lifecycle.workflows.results import TAKEN_ARGUMENTS

MOST_LISTED_PROBLEMS = 1_000
"""Problems of jobs to list, and separately of schedules. Further ones are counted only."""

# Payloads with the same argument names have the same form, and one of each form is tried. COPY
# sends row by row, because each row has a payload of up to a megabyte. A cursor, or a subquery that
# finds the names, would keep PostgreSQL from using parallel workers and take twice as long.
JOBS = f"""
COPY (
SELECT job_type, payload_version, jobs, lowest,
    (SELECT payload::text FROM django_jobs_job_live WHERE id = lowest),
    CASE WHEN is_step THEN {TAKEN_ARGUMENTS.format(id="lowest")} ELSE '{{}}' END
FROM (
    SELECT job_type, payload_version, is_step, count(*) AS jobs, min(id) AS lowest
    FROM (
        SELECT id, job_type, payload_version, workflow_run_id IS NOT NULL AS is_step,
            CASE WHEN jsonb_typeof(payload) = 'object'
            THEN jsonb_path_query_array(payload, 'strict $.keyvalue().key') END AS names
        FROM django_jobs_job_live
        WHERE status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
    ) AS live
    GROUP BY job_type, payload_version, is_step, names
) AS form
) TO STDOUT
"""  # noqa: S608 — a constant
# Declared schedules are left out: migrate writes or disables them.
SCHEDULES = """
COPY (
SELECT name, job_type, payload_version, payload::text FROM django_jobs_schedule
WHERE enabled AND NOT declared
ORDER BY id
) TO STDOUT
"""


@dataclass(slots=True)
class PayloadCheck:
    """How many jobs and schedules were checked and unreadable, and up to 1,000 problems of each."""

    jobs: int = 0
    schedules: int = 0
    unreadable_jobs: int = 0
    unreadable_schedules: int = 0
    listed_jobs: list[dict[str, Any]] = field(default_factory=list)
    listed_schedules: list[dict[str, Any]] = field(default_factory=list)


def check_pending() -> PayloadCheck:
    """Try one payload of each form, in two read-only statements.

    A form is a job type, a version and the names of the arguments, of steps of workflows or of
    other jobs. The values of other payloads of the same form are not checked.
    """
    report = PayloadCheck()
    listed: dict[tuple[str, int, str], dict[str, Any]] = {}
    types = ("text", "int2", "int8", "int8", "text", "text[]")
    for job_type, version, jobs, lowest, payload, taken in _stream(JOBS, types):
        report.jobs += jobs
        problem = _problem(job_type, version, payload, taken)
        if problem is None:
            continue
        report.unreadable_jobs += jobs
        key = job_type, version, problem
        if key in listed:
            listed[key]["jobs"] += jobs
            listed[key]["lowest_id"] = min(listed[key]["lowest_id"], lowest)
        elif len(listed) < MOST_LISTED_PROBLEMS:
            found = {"jobs": jobs, "lowest_id": lowest, "problem": problem}
            listed[key] = {"job_type": job_type, "version": version, **found}
    _check_schedules(report)
    report.listed_jobs = sorted(listed.values(), key=itemgetter("job_type", "lowest_id"))
    return report


def _check_schedules(report: PayloadCheck) -> None:
    declared = registry.schedules()
    types = ("text", "text", "int2", "text")
    for name, job_type, version, payload in _stream(SCHEDULES, types):
        if name in declared:
            continue
        report.schedules += 1
        problem = _problem(job_type, version, payload) or _storing_problem(
            job_type, version, payload
        )
        if problem is None:
            continue
        report.unreadable_schedules += 1
        if len(report.listed_schedules) < MOST_LISTED_PROBLEMS:
            report.listed_schedules.append(
                {"name": name, "job_type": job_type, "version": version, "problem": problem}
            )


def _stream(sql: str, types: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the rows of a COPY from a temporary file: the connection is busy until the COPY ends,
    and the upgrades of a payload may query the database."""
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


def _problem(
    job_type: str, version: int, text: str | None, taken: Sequence[str] = ()
) -> str | None:
    if text is None:  # the job was deleted meanwhile
        return None
    return stored_payload_problem(job_type, version, text, lambda: taken)


def _storing_problem(job_type: str, version: int, text: str) -> str | None:
    """Why the upgraded payload of a schedule cannot be stored with its jobs, or None."""
    handler = registry.get(job_type)
    try:
        handler.encoded(handler.upgraded(json.loads(text), version), "payload")
    except PayloadError as error:
        return str(error)
    return None
