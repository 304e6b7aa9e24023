"""Time zone tables that differ: Python's, those of the package ``tzdata``, and PostgreSQL's."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from ..domain.cron import check_timezone
from .findings import Finding, Reader, Statement, found

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
