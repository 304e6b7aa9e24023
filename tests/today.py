"""The day of the tests' database: its partitions are those that ``migrate`` makes on this day."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from django_jobs.domain.retention import AHEAD, Period, start_of
from django_jobs.lifecycle.history import TABLES, partitions
from django_jobs.maintenance.history import make_due_partitions
from tests.factories import run_sql

BEFORE_MIDNIGHT = timedelta(seconds=15)
"""No test begins so soon before midnight UTC. Nearly all that count days take less."""

_followed: datetime | None = None


def follow() -> None:
    """Remake the partitions if they are of another day: a run may pass midnight, and ``--reuse-db``
    finds a database of last week."""
    global _followed
    today = start_of(Period.DAY, datetime.now(UTC))
    if today == _followed:
        return
    days = [today + timedelta(days=number) for number in range(AHEAD.days + 1)]
    there = [one for table in TABLES for one in partitions(table)]
    if [one.start for one in there] != days * len(TABLES):
        for one in there:
            run_sql(f"DROP TABLE {one.name}")
        make_due_partitions()
    _followed = today


def wait_if_it_ends() -> None:
    """A test that makes the day before, and then counts the days that are over, has one today."""
    now = datetime.now(UTC)
    left = start_of(Period.DAY, now) + timedelta(days=1) - now
    if left < BEFORE_MIDNIGHT:
        time.sleep(left.total_seconds())
