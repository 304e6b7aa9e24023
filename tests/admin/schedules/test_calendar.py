"""The calendar: all schedules of the next days, day by day."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib import admin
from django.urls import reverse
from django.utils import timezone

from django_jobs.admin.schedules.calendar import MOST, Day, calendar_of
from django_jobs.models import Schedule
from tests.admin.schedules.scheduling import EVIL
from tests.admin.walking import Live, Page, change_url, list_url, statements_of, words
from tests.calls import calls_of
from tests.factories import run_sql

pytestmark = pytest.mark.django_db

URL = "/admin/django_jobs/schedule/calendar/"


def schedule(name: str = "nightly", **fields: Any) -> Schedule:
    return Schedule.objects.create(name=name, job_type="app.noop", **fields)


def shown(first: str, number: int = 1, zone: str = "UTC") -> tuple[list[Day], list[dict[str, str]]]:
    """The calendar in a zone, as it is in the year 2026."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    rows, day = Schedule.objects.order_by("name"), date.fromisoformat(first)
    return calendar_of(admin.site, rows, now, ZoneInfo(zone), day, number)


def lines(day: Day) -> list[str]:
    return [words("{due} | {count} | {link} | {when}".format(**line)) for line in day.lines]


def test_each_day_has_its_due_times_in_order() -> None:
    schedule("weekdays", cron="0 8 * * 1-5", timezone="America/New_York")
    schedule("nightly", cron="30 2 * * *", timezone="Europe/Berlin")
    schedule("each minute", cron="* * * * *")
    schedule("twice", cron="0 6,18 * * *")
    schedule("short", every=20.5, starts_at=datetime(2026, 11, 27, 23, 59, tzinfo=UTC))
    friday, saturday = shown("2026-11-27", 2)[0]
    assert friday.title == "Friday, Nov. 27, 2026"
    assert lines(friday) == [
        "00:00 – 23:59 | 1,440 | each minute | every minute UTC",  # noqa: RUF001
        "01:30 | 1 | nightly | at 02:30 every day Europe/Berlin",
        "06:00, 18:00 | 2 | twice | at 06:00 and 18:00 every day UTC",
        "13:00 | 1 | weekdays | at 08:00 on weekdays America/New_York",
        "23:59, 23:59:20, 23:59:41 | 3 | short | every 20.5 s",
    ]
    assert [line["link"] for line in saturday.lines if "weekdays" in line["link"]] == []


@pytest.mark.parametrize(
    ("zone", "day", "dst", "line"),
    [
        ("Europe/Berlin", "2026-03-29", "once", "03:00 CEST | 1 | {forward}: 03:00 CEST"),
        ("Europe/Berlin", "2027-03-28", "skip", "not due | 0 | {forward}: not in a skipped hour"),
        ("Europe/Berlin", "2026-10-25", "once", "02:30 CEST | 1 | {back}: 02:30 CEST"),
        ("Europe/Berlin", "2027-10-31", "twice",
         "02:30 CEST, 02:30 CET | 2 | {back}: 02:30 CEST, 02:30 CET"),
        ("America/New_York", "2026-03-08", "once", "03:00 EDT | 1 | {forward}: 03:00 EDT"),
        ("America/New_York", "2027-03-14", "skip",
         "not due | 0 | {forward}: not in a skipped hour"),
        ("America/New_York", "2026-11-01", "once", "02:30 EST | 1 | {back}: 02:30 EST"),
        ("America/New_York", "2027-11-07", "twice", "02:30 EST | 1 | {back}: 02:30 EST"),
    ],
)  # fmt: skip
def test_a_day_on_which_a_clock_changes_has_what_comes_of_it(
    zone: str, day: str, dst: str, line: str
) -> None:
    schedule(cron="30 2 * * *", timezone=zone, dst=dst)
    before = (date.fromisoformat(day) - timedelta(days=1)).isoformat()
    days, _held = shown(before, 3, zone)
    due, count, change = line.format(
        forward="clock goes forward", back="clock goes back"
    ).split(" | ")  # fmt: skip
    when = f"at 02:30 every day {zone}"
    assert lines(days[1]) == [f"{due} | {count} | nightly | {when} {change}"]
    assert days[1].changes == {f"{zone}: {change.split(':')[0]}"}
    for ordinary in (days[0], days[2]):
        assert lines(ordinary) == [f"02:30 | 1 | nightly | {when}"]
        assert ordinary.changes == set()


def test_the_clock_of_a_schedule_may_differ_from_that_of_the_page() -> None:
    schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    schedule("hourly", cron="0 * * * *", timezone="America/New_York")
    (day,), _held = shown("2027-03-28")
    assert lines(day) == [
        "00:00 – 23:00 | 24 | hourly | every hour America/New_York",  # noqa: RUF001
        "01:00 | 1 | nightly | at 02:30 every day Europe/Berlin clock goes forward: 03:00 CEST",
    ]
    assert day.changes == {"Europe/Berlin: clock goes forward"}
    hours = [shown(one, 1, "America/New_York")[0][0] for one in ("2026-11-01", "2027-03-14")]
    assert [line["count"] for day in hours for line in day.lines if "hourly" in line["link"]] == [
        "25",
        "23",
    ]


def test_today_begins_now() -> None:
    schedule(cron="0 6,18 * * *")
    now = datetime(2026, 11, 23, 12, tzinfo=UTC)
    rows = Schedule.objects.all()
    days, _held = calendar_of(admin.site, rows, now, UTC, date(2026, 11, 23), 2)
    assert days[0].title == "Today, Monday, Nov. 23, 2026"
    assert [line["due"] for day in days for line in day.lines] == ["18:00", "06:00, 18:00"]


def test_bounds_are_respected(page: Page) -> None:
    schedule(
        cron="0 * * * *",
        starts_at=datetime(2026, 11, 27, 20, tzinfo=UTC),
        ends_at=datetime(2026, 11, 28, 3, tzinfo=UTC),
    )
    days, _held = shown("2026-11-26", 4)
    assert [[line["count"] for line in day.lines] for day in days] == [[], ["4"], ["4"], []]


def test_what_does_not_fire_is_shown_apart_with_the_reason(page: Page) -> None:
    schedule("running", every=3600.0)
    schedule("held", every=3600.0, paused_at=timezone.now(), paused_reason="the partner is down")
    broken = schedule("broken", every=3600.0)
    Schedule.objects.filter(pk=broken.pk).update(error="app.jobs.Bad: no such customer")
    odd = schedule("odd", cron="0 3 * * *")
    Schedule.objects.filter(pk=odd.pk).update(timezone="Mars/Base")
    schedule("off", every=3600.0, enabled=False)
    text = page.read(URL)
    held = words(text.split("<details", 1)[1].split("</details>", 1)[0])
    assert "3 schedules are left out, because they do not fire" in held
    assert "paused held the partner is down" in held
    assert "error broken no such customer" in held
    assert "error odd no time zone is called 'Mars/Base'" in held
    days = text.split("</details>", 1)[1]
    assert set(re.findall(r">(running|held|broken|odd|off)</a>", days)) == {"running"}


def test_the_list_of_schedules_leads_to_the_calendar_and_it_to_each(page_of: Any) -> None:
    one = schedule(every=3600.0)
    page = page_of("view_schedule")
    assert reverse("admin:django_jobs_schedule_calendar") == URL
    assert f'<a href="{URL}">Calendar</a>' in page.text(list_url(Schedule))
    text = page.text(URL)
    assert f'<a href="{change_url(Schedule, one.pk)}">nightly</a>' in text
    # In the last hour of a day, the rest of it has no due time, and so no table.
    tables, empty = text.count('<th scope="col">Due<'), text.count("No schedule is due.")
    assert text.count('<section aria-labelledby="day-') == tables + empty == 7
    assert tables >= 6


def test_it_needs_the_permission_to_view_schedules(page_of: Callable[..., Page]) -> None:
    assert page_of("view_job").client.get(URL).status_code == 403
    assert page_of("view_schedule", name="vera").client.get(URL).status_code == 200


@pytest.mark.parametrize(
    ("query", "days", "first"),
    [
        ("days=3", 3, ""),
        ("days=0", 1, ""),
        ("days=-5", 1, ""),
        ("days=99999999999999999999", 31, ""),
        ("days=many&from=soon", 7, ""),
        ("days=%00&from=%00", 7, ""),
        ("from=2099-03-28&days=2", 2, "Saturday, March 28, 2099"),
        ("from=2001-01-01", 7, "Today"),
        ("from=9999-12-31", 7, "Wednesday, Jan. 1, 9000"),
        ("from=0001-01-01", 7, "Today"),
    ],
)
def test_the_days_are_chosen_within_bounds(page: Page, query: str, days: int, first: str) -> None:
    schedule(every=3600.0)
    text = page.text(f"{URL}?{query}")
    titles = re.findall(r'<h2 id="day-\d+">([^<]*)', text)
    assert len(titles) == days
    assert titles[0].startswith(first or "Today")


def test_hostile_names_and_reasons_are_text(page: Page) -> None:
    schedule(EVIL, every=3600.0)
    schedule(f"{EVIL} 2", every=60.0, paused_at=timezone.now(), paused_reason=EVIL)
    schedule("\u202eabc", cron="0 3 * * *")
    row = schedule("bad", cron="0 3 * * *")
    run_sql(
        "UPDATE django_jobs_schedule SET cron = %s, timezone = 'UTC' WHERE id = %s",
        ["<b style=x> * * *", row.pk],
    )
    text = page.text(URL)
    assert Live(text).alarms == []
    assert "&lt;script&gt;" in text


def test_times_that_python_cannot_represent_do_not_fail_the_page(page: Page) -> None:
    for name, column, value in (
        ("a", "starts_at", "-infinity"),
        ("b", "starts_at", "infinity"),
        ("c", "ends_at", "infinity"),
        ("d", "ends_at", "-infinity"),
        ("e", "next_due_at", "infinity"),
    ):
        for rule in ({"every": 60.0}, {"cron": "0 3 * * *"}):
            row = schedule(f"{name} {rule}", **rule)
            run_sql(f"UPDATE django_jobs_schedule SET {column} = %s WHERE id = %s", [value, row.pk])
    assert "Calendar" in page.text(URL)


@pytest.mark.usefixtures("no_time_limit")
def test_many_schedules_take_one_query_and_few_calls(page: Page) -> None:
    rules: list[dict[str, Any]] = [
        {"every": 1.0}, {"cron": "* * * * *"}, {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"},
        {"cron": "H H * * *"}, {"cron": "0 8 * * 1-5", "timezone": "America/New_York"},
    ]  # fmt: skip
    Schedule.objects.bulk_create(
        Schedule(name=f"schedule {number}", job_type="app.noop", **rules[number % 5])
        for number in range(300)
    )
    page.text(URL)
    statements = statements_of(page, URL)
    (of_schedules,) = (sql for sql in statements if 'FROM "django_jobs_schedule"' in sql)
    assert '"django_jobs_schedule"."payload"' not in of_schedules
    assert '"payload")::text' not in of_schedules  # of an exception
    assert page.text(URL).count("<tr>") <= 7 * 301
    # To visit each due time would be 48 million, in a minute.
    assert calls_of(lambda: page.text(URL)) < 2_000_000


def test_more_schedules_than_the_page_holds_are_left_out_and_it_says_so(page: Page) -> None:
    Schedule.objects.bulk_create(
        Schedule(name=f"schedule {number}", job_type="app.noop", cron="0 3 1 1 *")
        for number in range(MOST + 1)
    )
    text = page.read(f"{URL}?days=1")
    assert f"There are more than {MOST:,} schedules." in text


def test_without_schedules_each_day_says_so(page: Page) -> None:
    assert page.read(URL).count("No schedule is due.") == 7
