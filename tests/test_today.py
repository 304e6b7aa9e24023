"""A run passes midnight, and a database outlives the day on which it was made."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from django_jobs.domain.retention import Period, start_of
from django_jobs.lifecycle.history import TABLES, partitions
from tests import today
from tests.factories import run_sql
from tests.maintenance.test_history import make_days


def made_yesterday() -> None:
    make_days(1)
    for table in TABLES:
        run_sql(f"DROP TABLE {partitions(table)[-1].name}")


def made_months_ago() -> None:
    for table in TABLES:
        for one in partitions(table):
            run_sql(f"DROP TABLE {one.name}")
    make_days(90, 89)


@pytest.mark.django_db
@pytest.mark.parametrize("age", [made_yesterday, made_months_ago])
def test_a_database_of_another_day_gets_the_partitions_of_this_one(
    age: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [partitions(table) for table in TABLES]
    age()
    assert [partitions(table) for table in TABLES] != there
    today.follow()
    assert [partitions(table) for table in TABLES] != there, "it looks once a day"
    monkeypatch.setattr(today, "_followed", None)
    today.follow()
    assert [partitions(table) for table in TABLES] == there
    begin = start_of(Period.DAY, datetime.now(UTC))
    assert [one.start for one in there[0]] == [begin + timedelta(number) for number in range(8)]


@pytest.mark.parametrize("seconds, waits", [(0, []), (86_384, []), (86_390.5, [9.5]), (43_199, [])])
def test_no_test_begins_shortly_before_midnight(
    monkeypatch: pytest.MonkeyPatch, seconds: float, waits: list[float]
) -> None:
    at = datetime(2028, 2, 29, tzinfo=UTC) + timedelta(seconds=seconds)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return at

    slept: list[float] = []
    monkeypatch.setattr(today, "datetime", Clock)
    monkeypatch.setattr(today.time, "sleep", slept.append)
    today.wait_if_it_ends()
    assert slept == waits
