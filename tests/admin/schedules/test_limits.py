"""Excluded dates and the maximum number of jobs: in the form, the preview and the calendar."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_jobs.admin.schedules.calendar import calendar_of
from django_jobs.admin.schedules.display import preview
from django_jobs.domain.schedules import Rule
from django_jobs.models import Schedule
from tests.admin.schedules.scheduling import (
    EVIL,
    add_url,
    filled_in,
    in_code,
    new_schedule,
    schedulable,
)
from tests.admin.walking import Live, Page, change_url, list_url
from tests.factories import look, run_sql

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 12, 21, 12, tzinfo=UTC)
CHRISTMAS = [date(2026, 12, 25), date(2026, 12, 26)]
DAILY = {"cron": "0 8 * * *", "every": None}


def previewed(page: Page, **rule: Any) -> dict[str, Any]:
    """As the script of the page asks for it."""
    answered = page.client.post(reverse("admin:django_jobs_schedule_preview"), rule)
    assert answered.status_code == 200
    answer: dict[str, Any] = answered.json()
    return answer


def added(page: Page, **values: Any) -> Any:
    return page.client.post(add_url(), filled_in(argument_customer="7", **values))


# The form


def test_dates_are_entered_one_a_line(page: Page) -> None:
    with schedulable():
        text = "2026-12-26\r\n\r\n 2026-12-25 \r\n2026-12-26"
        assert added(page, excluded_dates=text, max_jobs="10").status_code == 302
        schedule = Schedule.objects.get()
        assert (schedule.excluded_dates, schedule.max_jobs) == (CHRISTMAS, 10)
        form = page.text(change_url(Schedule, schedule.pk))
        area = re.search(r'<textarea name="excluded_dates"[^>]*>([^<]*)<', form)
        assert area is not None
        assert area[1].split() == ["2026-12-25", "2026-12-26"]


def test_a_form_that_is_sent_unchanged_leaves_the_next_due_time(page: Page) -> None:
    with schedulable():
        added(page, excluded_dates="2026-12-25", max_jobs="3")
        look()
        schedule = Schedule.objects.get()
        page.client.post(
            change_url(Schedule, schedule.pk),
            filled_in(argument_customer="7", excluded_dates="2026-12-25\r\n", max_jobs="3"),
        )
        schedule.refresh_from_db()
        assert not schedule.stale
        page.client.post(
            change_url(Schedule, schedule.pk),
            filled_in(argument_customer="8", excluded_dates="2026-12-24", max_jobs="3"),
        )
        schedule.refresh_from_db()
        assert (schedule.stale, schedule.excluded_dates) == (True, [date(2026, 12, 24)])
        assert schedule.payload["customer"] == 8


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("excluded_dates", "2026-12-25\n\n26.12.2026", "Line 3: “26.12.2026” is not a date"),
        ("excluded_dates", "2026-02-29", "Line 1: “2026-02-29” is not a date"),
        ("excluded_dates", "2026-12-25 2026-12-26", "Line 1: “2026-12-25 2026-12-26” is not"),
        ("excluded_dates", "\x00", "Line 1: "),
        ("excluded_dates", "infinity", "Line 1: “infinity” is not a date"),
        ("max_jobs", "0", "greater than or equal to 1"),
        ("max_jobs", "-3", "greater than or equal to 1"),
        ("max_jobs", "9" * 30, "less than or equal to 2147483647"),
        ("max_jobs", "many", "Enter a whole number"),
    ],
)
def test_what_is_wrong_is_shown_at_its_field(
    page: Page, field: str, value: str, problem: str
) -> None:
    with schedulable():
        form = added(page, **{field: value}).context["adminform"].form
    assert list(form.errors) == [field]
    assert problem in str(form.errors[field].as_text())
    assert not Schedule.objects.exists()


def test_more_than_366_dates_are_refused(page: Page) -> None:
    days = [date(2026, 1, 1) + timedelta(days=number) for number in range(367)]
    with schedulable():
        form = added(page, excluded_dates="\n".join(map(str, days))).context["adminform"].form
        assert "at most 366 dates" in str(form.errors["excluded_dates"])
        assert added(page, excluded_dates="\n".join(map(str, days[:366]))).status_code == 302
    assert Schedule.objects.get().excluded_dates == days[:366]


def test_a_hostile_date_is_text(page: Page) -> None:
    with schedulable():
        text = added(page, excluded_dates=EVIL).content.decode()
    assert Live(text).alarms == []


def test_a_copy_has_the_dates_and_the_maximum_and_begins_to_count(page: Page) -> None:
    with schedulable():
        added(page, excluded_dates="2026-12-25", max_jobs="3")
        schedule = Schedule.objects.get()
        Schedule.objects.update(jobs_made=2)
        form = page.text(add_url(copy=schedule.pk))
    assert "2026-12-25</textarea>" in form
    assert 'name="max_jobs" value="3"' in form
    assert "made 2 of" not in form


# The page of a schedule


def test_a_schedule_says_how_many_of_its_jobs_are_made(page: Page) -> None:
    schedule = new_schedule(max_jobs=1_200)
    Schedule.objects.update(jobs_made=1_003)
    assert "made 1,003 of 1,200 jobs, 197 left" in page.read(change_url(Schedule, schedule.pk))
    run_sql("UPDATE django_jobs_schedule SET max_jobs = NULL")
    assert "1,003" not in page.read(change_url(Schedule, schedule.pk))


def test_a_schedule_that_has_made_all_of_its_jobs_says_so(page: Page) -> None:
    schedule = new_schedule(max_jobs=3, jobs_made=3)
    why = "Made all of its jobs. A larger maximum starts it again."
    text = page.read(change_url(Schedule, schedule.pk))
    assert "made 3 of 3 jobs, 0 left" in text
    assert text.count(why) == 2  # why it does not fire, and under its next times
    assert why in page.read(list_url(Schedule))
    Schedule.objects.update(paused_at=timezone.now(), paused_reason="the bank is closed")
    assert "the bank is closed" in page.read(list_url(Schedule))


def test_a_declared_schedule_shows_its_dates(page: Page) -> None:
    with in_code("nightly", excluded_dates=CHRISTMAS, max_jobs=4) as schedule:
        text = page.read(change_url(Schedule, schedule.pk))
    assert "2026-12-25, 2026-12-26" in text
    assert "made 0 of 4 jobs, 4 left" in text


# The preview


def test_the_preview_leaves_excluded_dates_out_and_names_them(page: Page) -> None:
    answer = previewed(
        page, cron="0 8 * * mon-fri", timezone="Europe/Paris",
        starts_at_0="2099-12-23", starts_at_1="12:00",
        excluded_dates="2099-12-24\n2099-12-25\n2099-12-26\n2001-01-01",
    )  # fmt: skip
    assert [time["local"][:17] for time in answer["times"][:2]] == [
        "Mon, Dec 28, 2099",
        "Tue, Dec 29, 2099",
    ]
    # The 26th is a Saturday.
    assert answer["left_out"] == "Not due on Dec. 24, 2099 and Dec. 25, 2099."
    plain = previewed(page, cron="0 8 * * *")
    assert plain["left_out"] == ""


def test_of_many_excluded_dates_the_first_are_named() -> None:
    days = frozenset(CHRISTMAS[0] + timedelta(days=number) for number in range(9))
    shown = preview(Rule(every=3600.0, excluded_dates=days), NOW)
    assert shown.left_out == (
        "Not due on Dec. 25, 2026, Dec. 26, 2026, Dec. 27, 2026, Dec. 28, 2026, Dec. 29, 2026"
        " and 4 more dates."
    )
    last = preview(Rule(every=3600.0, excluded_dates=frozenset({date.max})), NOW)
    assert (last.left_out, len(last.times)) == ("", 5)


def test_the_rest_of_today_counts_in_the_zone_of_the_rule() -> None:
    """At noon of the 21st in UTC it is the 22nd in Kiritimati, at 02:00."""
    for hour, left_out in ((1, ""), (3, "Not due on Dec. 22, 2026.")):
        rule = Rule(
            cron=f"0 {hour} * * *",
            timezone="Pacific/Kiritimati",
            excluded_dates=frozenset({date(2026, 12, 21), date(2026, 12, 22)}),
        )
        assert preview(rule, NOW).left_out == left_out


@pytest.mark.parametrize(
    ("rule", "times", "note"),
    [
        ({"max_jobs": "3"}, 3, "It has no due times after these."),
        ({"max_jobs": "3", "jobs_made": "1"}, 2, "It has no due times after these."),
        ({"max_jobs": "3", "jobs_made": "3"}, 0, "Made all of its jobs. A larger maximum"),
        ({"max_jobs": "2000", "jobs_made": "1"}, 5, "It ends after 1,999 more jobs."),
        ({"max_jobs": "9", "ends_at_0": "2199-01-01", "ends_at_1": "00:00"}, 5,
         "It ends after 9 more jobs."),
        ({"max_jobs": "9", "starts_at_0": "2099-01-01", "starts_at_1": "00:00",
          "ends_at_0": "2099-01-06", "ends_at_1": "12:00"}, 5,
         "It has 6 due times until it ends."),
    ],
)  # fmt: skip
def test_the_preview_shows_as_many_times_as_jobs_are_left(
    page: Page, rule: dict[str, str], times: int, note: str
) -> None:
    answer = previewed(page, cron="0 8 * * *", **rule)
    assert len(answer["times"]) == times
    assert answer["note"].startswith(note)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"excluded_dates": "2099-12-24\nsoon"}, "excluded_dates: Line 2: “soon” is not a date"),
        ({"max_jobs": "0"}, "max_jobs: "),
        ({"jobs_made": "-1", "max_jobs": "3"}, "jobs_made: "),
        ({"starts_at_0": "2099-12-24", "starts_at_1": "00:00", "ends_at_0": "2099-12-24",
          "ends_at_1": "23:00", "excluded_dates": "2099-12-24"}, "it never comes due between"),
    ],
)  # fmt: skip
def test_a_wrong_limit_is_answered_with_its_error(
    page: Page, rule: dict[str, str], problem: str
) -> None:
    answer = previewed(page, cron="0 8 * * *", **rule)
    assert answer["error"].startswith(problem)
    assert not answer.get("times")


def test_the_address_of_the_preview_has_the_jobs_made_and_needs_a_token(page: Page) -> None:
    schedule = new_schedule(max_jobs=9, jobs_made=7)
    text = page.text(change_url(Schedule, schedule.pk))
    assert "/preview/?jobs_made=7" in text
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = page.client.cookies
    url = reverse("admin:django_jobs_schedule_preview") + "?jobs_made=7"
    assert strict.post(url, {"every": "60"}).status_code == 403
    answered = page.client.post(url, {"every": "60", "max_jobs": "9"})
    assert len(answered.json()["times"]) == 2


# The calendar


def counts(first: date, number: int, zone: str = "UTC") -> list[list[str]]:
    days, _ = calendar_of(admin.site, Schedule.objects.all(), NOW, ZoneInfo(zone), first, number)
    return [[f"{line['due']} {line['count']}" for line in day.lines] for day in days]


def test_the_calendar_leaves_excluded_dates_out() -> None:
    new_schedule(**DAILY, excluded_dates=CHRISTMAS, timezone="Asia/Tokyo")
    new_schedule(name="other", excluded_dates=CHRISTMAS)
    assert counts(date(2026, 12, 24), 4) == [
        ["00:00 – 23:00 24"],  # noqa: RUF001
        [],
        ["23:00 1"],
        ["00:00 – 23:00 24", "23:00 1"],  # noqa: RUF001
    ]


def test_the_calendar_shows_as_many_due_times_as_jobs_are_left() -> None:
    new_schedule(max_jobs=40, jobs_made=3)
    assert counts(date(2026, 12, 21), 4) == [
        ["12:00 – 23:00 12"],  # noqa: RUF001
        ["00:00 – 23:00 24"],  # noqa: RUF001
        ["00:00 1"],
        [],
    ]
    # Those before the first day are counted.
    assert counts(date(2026, 12, 22), 3) == counts(date(2026, 12, 21), 4)[1:]
    assert counts(date(2026, 12, 25), 1) == counts(date(2099, 1, 1), 1) == [[]]
    Schedule.objects.update(jobs_made=40)
    assert counts(date(2026, 12, 21), 2) == [[], []]
