"""Times that Python cannot hold do not fail the query that meets them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import F, Max
from django.db.models.functions import TruncHour
from django.utils import timezone

from django_jobs.doctor.findings import Reader, Statement
from django_jobs.models import Job
from django_jobs.models.database import database_time, fetch_named
from django_jobs.models.fields import DistantTime, TimestampNow
from django_jobs.why.facts import moment as why_moment
from tests.app.jobs import noop
from tests.factories import rows_in, run_sql

pytestmark = pytest.mark.django_db

DISTANT = {
    "infinity": datetime.max,
    "20000-01-01 00:00:00+00": datetime.max,
    "-infinity": datetime.min,
    "0044-03-15 00:00:00+00 BC": datetime.min,
}


@pytest.mark.parametrize("text", DISTANT)
def test_a_time_beyond_pythons_range_is_clamped_and_keeps_its_text(text: str) -> None:
    job, other = noop.enqueue(), noop.enqueue()
    run_sql("UPDATE django_jobs_job SET expires_at = %s WHERE id = %s", [text, job.pk])
    assert set(Job.objects.all()) == {job, other}
    at = Job.objects.get(pk=job.pk).expires_at
    assert isinstance(at, DistantTime)
    assert (at, at.text) == (DISTANT[text].replace(tzinfo=UTC), text)
    assert Job.objects.filter(expires_at=at).get() == job
    Job.objects.filter(pk=other.pk).update(expires_at=at)
    stored = "SELECT expires_at::text FROM django_jobs_job WHERE id = %s"
    assert run_sql(stored, [other.pk]) == [(text,)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
def test_any_other_time_is_converted_by_django(zone: str) -> None:
    moments = [
        datetime(2026, 11, 22, 1, 2, 3, 456000, tzinfo=UTC),
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(1883, 11, 18, 16, tzinfo=UTC),
        datetime(1, 1, 3, tzinfo=UTC),
        datetime(9999, 12, 29, 23, 59, 59, 999999, tzinfo=UTC),
    ]
    connection.cursor().execute(f"SET LOCAL TIME ZONE '{zone}'")
    for moment in moments:
        job = noop.enqueue()
        Job.objects.filter(pk=job.pk).update(available_at=moment.astimezone(ZoneInfo(zone)))
        read = Job.objects.get(pk=job.pk).available_at
        assert (read, read.tzinfo) == (moment, UTC)
        assert type(read) is datetime


def test_all_kinds_of_queries_work_with_the_column() -> None:
    first, second = noop.enqueue(), noop.using(run_at=timezone.now() + timedelta(days=2)).enqueue()
    jobs, column = Job.objects.order_by("available_at"), "available_at"
    wanted = [first.available_at, second.available_at]
    assert list(jobs.values_list(column, flat=True)) == wanted
    assert list(jobs.values_list(column, flat=True).distinct()) == wanted
    assert jobs.aggregate(last=Max(column))["last"] == wanted[1]
    assert list(jobs.annotate(at=F(column)).filter(at__gt=wanted[0])) == [second]
    assert jobs.filter(available_at__in=jobs.values(column)).count() == 2
    hours = jobs.annotate(hour=TruncHour(column)).values_list("hour", flat=True)
    assert [hour.minute for hour in hours] == [0, 0]
    assert sorted(jobs.values_list(column).union(jobs.values_list(column))) == [
        (moment,) for moment in wanted
    ]
    assert [count for _, count in jobs.values_list(column).annotate(count=Max("pk") * 0 + 1)] == [
        1,
        1,
    ]
    years = sorted({at.year for at in wanted})
    assert [(at.year, at.month) for at in jobs.datetimes(column, "year")] == [
        (year, 1) for year in years
    ]
    assert jobs.raw("SELECT * FROM django_jobs_job ORDER BY id")[0].available_at == wanted[0]
    assert [job.available_at for job in jobs.iterator()] == wanted


REPEATED = [  # a first and a second pass of a repeated hour
    ("Europe/Berlin", datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 14, 45, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),
]


@pytest.mark.parametrize(("zone", "at"), REPEATED)
def test_times_are_read_in_utc_whatever_zone_the_database_has(zone: str, at: datetime) -> None:
    with rows_in(zone):
        job = noop.enqueue()
        assert job.created_at.tzinfo is UTC
        jobs = Job.objects.filter(pk=job.pk)
        jobs.update(available_at=at)
        column = jobs.values_list("available_at", flat=True)
        reader, statement = Reader(), Statement("SELECT available_at AS at FROM django_jobs_job")
        reader.read_together([statement], "SELECT 1")
        read = [
            *(jobs.get().available_at, column.get(), column.distinct()[0]),
            jobs.raw("SELECT * FROM django_jobs_job")[0].available_at,
            fetch_named(statement.sql, {})[0]["at"],
            reader(statement)[0]["at"],
        ]
        assert [(one, one.tzinfo) for one in read] == [(at, UTC)] * len(read)
        clocks = [database_time(), jobs.annotate(now=TimestampNow()).get().now]
        assert [now.tzinfo for now in clocks] == [UTC, UTC]


@pytest.mark.parametrize(("zone", "at"), REPEATED)
def test_the_parts_of_an_explanation_are_in_utc_too(zone: str, at: datetime) -> None:
    with timezone.override(zone):
        read = why_moment(at.isoformat())
    assert (read, read and read.tzinfo) == (at, UTC)
