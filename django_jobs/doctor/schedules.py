"""Schedules that do not fire, or not as the code declares them."""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import import_module, resources
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from .. import registry
from ..api.schedules import FIELDS, declared_rows, is_ours
from ..conf import conf
from ..domain.cron import check_timezone
from ..domain.schedules import Rule
from ..metrics.schedules import MAX_LAG, problem_of_schedules, take_schedules
from ..models.database import migrate_command
from ..models.worker import IS_ALIVE
from .findings import Finding, Reader, Statement, found
from .work import MOST_LISTED

# Where workers live, they decide what is known; the code of this process may be another. One that
# has ended fires no more.
UNHANDLED = Statement(
    f"""
SELECT schedule.name, schedule.job_type FROM django_jobs_schedule AS schedule
WHERE schedule.enabled AND schedule.paused_at IS NULL
  AND (schedule.next_due_at IS NOT NULL OR schedule.stale OR schedule.error <> '') AND NOT (
    SELECT coalesce(bool_or(worker.job_types @> to_jsonb(schedule.job_type)),
                    schedule.job_type = ANY(%(types)s))
    FROM django_jobs_worker AS worker
    WHERE {IS_ALIVE})
ORDER BY schedule.name
LIMIT %(most)s
""",
    lambda: {"most": MOST_LISTED, "types": list(registry.versions())},
)

MOST_COMPUTED = 1_000
"""The due times of so many rules take 0.2 s."""

# The server compares, because it also has values that Python cannot read, such as infinity.
WRITTEN = (*FIELDS, "payload_version", "declared")
DIFFERS = "CASE WHEN code.{0} IS DISTINCT FROM schedule.{0} THEN '{0}' END"
UNWRITTEN = Statement(
    f"""
SELECT * FROM (
    SELECT code.name, schedule.name IS NULL AS is_missing, code.enabled, array_remove(ARRAY[
        {", ".join(DIFFERS.format(column) for column in WRITTEN)}
    ], NULL) AS changed
    FROM jsonb_populate_recordset(NULL::django_jobs_schedule, %(declared)s::jsonb) AS code
    LEFT JOIN django_jobs_schedule AS schedule ON schedule.name = code.name
) AS compared
WHERE CASE WHEN is_missing THEN enabled ELSE changed <> '{{}}' END
ORDER BY is_missing DESC, name
LIMIT %(most)s
""",
    lambda: {"most": MOST_LISTED, "declared": _declared()},
)
UNDECLARED = Statement(
    """
SELECT name, job_type FROM django_jobs_schedule
WHERE declared AND enabled AND NOT name = ANY(%(names)s)
ORDER BY name
""",
    lambda: {"names": list(registry.schedules())},
)

# Times that Python cannot read are left out.
RULE = ("name", "cron", "every", "timezone", "dst", "starts_at", "ends_at")
FAR_AHEAD = Statement(
    f"""
SELECT {", ".join(RULE)}, excluded_dates, next_due_at, statement_timestamp() AS now
FROM django_jobs_schedule
WHERE enabled AND paused_at IS NULL AND error = '' AND NOT stale
  AND next_due_at > statement_timestamp() + make_interval(secs => %(lag)s)
  AND greatest(next_due_at, starts_at, ends_at) < '9999-01-01'
  AND (least(starts_at, ends_at) >= '1970-01-01') IS NOT FALSE
  AND NOT EXISTS (  -- one that is moved leaves out its own time
    SELECT 1 FROM django_jobs_scheduleexception AS exception
    WHERE exception.schedule_id = django_jobs_schedule.id
      AND exception.due_at < next_due_at AND exception.moved_to >= next_due_at)
ORDER BY next_due_at DESC
LIMIT %(most)s
""",
    lambda: {"lag": MAX_LAG, "most": MOST_COMPUTED},
)


def examine_schedules(read: Reader) -> Iterator[Finding]:
    for row in read(UNHANDLED):
        name, job_type = row["name"], row["job_type"]
        yield found(
            "D306",
            f"The schedule {name!r} fires {job_type}, for which there is no handler.",
            "Deploy the handler to the workers, or disable the schedule:",
            f"manage.py jobschedule pause {quote(name)}",
            schedule=name,
            job_type=job_type,
        )
    problem = problem_of_schedules(take_schedules(), MAX_LAG) if conf().schedules else None
    if problem:
        yield found(
            "D307",
            f"Schedules do not fire: {problem}.",
            "The list shows the reason of each. Correct the rule, or start a worker:",
            "manage.py jobschedule list",
        )


def examine_declarations(read: Reader) -> Iterator[Finding]:
    """Schedules that the last ``migrate`` did not write as this code declares them."""
    for row in read(UNWRITTEN):
        name = row["name"]
        if row["is_missing"]:
            yield found(
                "D310",
                f"The schedule {name!r} is declared in code and has no row, so it never fires.",
                "Run migrate with this code, which writes the declared schedules:",
                migrate_command(),
                schedule=name,
            )
            continue
        yield found(
            "D311",
            f"The schedule {name!r} is not as this code declares it. Other values have: "
            f"{', '.join(row['changed'])}.",
            "If this is the newest code, run migrate, which writes its values:",
            migrate_command(),
            schedule=name,
            changed=row["changed"],
        )
    gone = (row["name"] for row in read(UNDECLARED) if is_ours(row["job_type"]))
    for name in islice(gone, MOST_LISTED):
        yield found(
            "D312",
            f"The schedule {name!r} is enabled, and this code no longer declares it.",
            "If this is the newest code, run migrate, which disables it and keeps its history:",
            migrate_command(),
            schedule=name,
        )


def examine_due_times(read: Reader) -> Iterator[Finding]:
    """Schedules that pass over due times, because the clock was ahead when they fired last."""
    for row in islice(filter(_passes_over, read(FAR_AHEAD)), MOST_LISTED):
        name, at = row["name"], row["next_due_at"]
        yield found(
            "D313",
            f"The schedule {name!r} does not fire until {at:%Y-%m-%d %H:%M}, although its rule is "
            "due before. The database's clock was ahead when it fired last.",
            "Look at the clock (D203). Pause and resume it, which computes its next due time:",
            f"manage.py jobschedule pause {quote(name)}",
            f"manage.py jobschedule resume {quote(name)}",
            schedule=name,
            next_due_at=at,
        )


def _passes_over(row: dict[str, Any]) -> bool:
    rule = Rule(
        **{name: row[name] for name in RULE}, excluded_dates=frozenset(row["excluded_dates"])
    )
    with suppress(ValueError, OverflowError):  # a rule that a worker will refuse: see D307
        next_two = list(islice(rule.due_times(row["now"]), 2))
        return bool(next_two) and row["next_due_at"] > next_two[-1]
    return False


def _declared() -> str:
    rows = [{"name": name, **row} for name, row in declared_rows().items()]
    return json.dumps(rows, default=lambda value: value.isoformat())  # dates and times


MOST_ZONES = 100
"""Zones that are compared."""

# Every second day for a year, which shows a moved change of the clock. A zone that PostgreSQL does
# not know would be an error, so it has no offsets. The names are read if there is a zone at all.
ZONES = Statement(
    """
WITH zones AS MATERIALIZED (
    SELECT timezone AS zone, min(name) AS schedule FROM django_jobs_schedule
    WHERE enabled AND timezone <> 'UTC' AND (cron <> '' OR excluded_dates <> '{}')
    GROUP BY timezone ORDER BY timezone LIMIT %(most)s
), days AS MATERIALIZED (
    SELECT date_trunc('second', statement_timestamp()) + make_interval(secs => 172800 * n) AS at
    FROM generate_series(0, 183) AS n
)
SELECT zone, schedule,
    ARRAY(SELECT extract(epoch FROM at)::bigint FROM days ORDER BY at) AS moments,
    CASE WHEN zone = ANY(ARRAY(SELECT name FROM pg_timezone_names)) THEN ARRAY(
        SELECT extract(epoch FROM timezone(zone, at) - timezone('UTC', at))::bigint
        FROM days ORDER BY at)
    END AS offsets
FROM zones
""",
    lambda: {"most": MOST_ZONES},
)


def examine_zones(read: Reader) -> Iterator[Finding]:
    """Zones of schedules for which the tables of this host differ, over the next year."""
    of_package: list[str] = []
    of_server: list[str] = []
    schedules: dict[str, str] = {}
    for row in read(ZONES):
        name, moments = row["zone"], row["moments"]
        try:
            ours = _offsets(check_timezone(name), moments)
        except ValueError:
            continue  # its schedules get an error
        package = _zone_of_package(name)
        if package is not None and _offsets(package, moments) != ours:
            of_package.append(name)
        if [timedelta(seconds=seconds) for seconds in row["offsets"] or ()] != ours:
            of_server.append(name)
        if name in (*of_package, *of_server):
            schedules[name] = row["schedule"]
    if not schedules:
        return
    machine, package_version = _version_of_machine(), _version_of_package()
    first = next(iter(schedules))
    differing = [
        f"{what} differ for {', '.join(zones)}"
        for what, zones in (
            (f"those of the package tzdata ({package_version})", of_package),
            ("those of PostgreSQL", of_server),
        )
        if zones
    ]
    yield found(
        "D315",
        f"Schedules such as {schedules[first]!r} are due by the time zone tables that Python uses "
        f"({_used(first, machine, package_version)}); {'; '.join(differing)}.",
        "Update what is older, on all hosts: the tables of the operating system, or the package "
        "tzdata, which Python reads where the system has no tables or PYTHONTZPATH is empty. Then "
        "restart the workers.",
        zones=sorted(schedules),
        package=of_package,
        server=of_server,
        machine_version=machine,
        package_version=package_version,
    )


def _offsets(zone: zoneinfo.ZoneInfo, moments: Sequence[int]) -> list[timedelta | None]:
    return [datetime.fromtimestamp(at, zone).utcoffset() for at in moments]


def _zone_of_package(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
            return zoneinfo.ZoneInfo.from_file(file, key=name)
    except (ImportError, OSError, ValueError):
        return None


def _version_of_package() -> str | None:
    try:
        package: Any = import_module("tzdata")
    except ImportError:
        return None
    return str(package.IANA_VERSION)


def _version_of_machine() -> str | None:
    """What the first file of tables that has a version calls it; Debian and macOS write one."""
    for folder in zoneinfo.TZPATH:
        for file, prefix in (("tzdata.zi", "# version "), ("+VERSION", "")):
            with suppress(OSError), Path(folder, file).open() as lines:
                return lines.readline().removeprefix(prefix).strip()
    return None


def _used(name: str, machine: str | None, package: str | None) -> str:
    if any(Path(folder, name).is_file() for folder in zoneinfo.TZPATH):
        return f"the machine's, {machine or 'of an unknown version'}"
    return f"those of the package tzdata, {package}"
