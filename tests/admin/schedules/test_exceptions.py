"""Exceptions in the console: from the page of a schedule and from the calendar."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_jobs import change_occurrence, move_occurrence, skip_occurrence
from django_jobs.models import Schedule, ScheduleException
from tests.admin.schedules.scheduling import EVIL, in_code, new_schedule
from tests.admin.walking import Page, change_url, list_url, message_of, words
from tests.factories import run_sql

pytestmark = pytest.mark.django_db

START = datetime(2099, 10, 24, tzinfo=UTC)
DUE = datetime(2099, 10, 24, 0, 30, tzinfo=UTC)
DAY = timedelta(days=1)
CALENDAR = "/admin/django_jobs/schedule/calendar/?from=2099-10-24&days=3"


def nightly(**fields: Any) -> Schedule:
    """Due at 02:30 in Paris from 24 October 2099 on."""
    fields = {"cron": "30 2 * * *", "every": None, "timezone": "Europe/Paris", **fields}
    return new_schedule(name="nightly", starts_at=START, **fields)


def url_of(schedule: Schedule) -> str:
    return reverse("admin:django_jobs_schedule_occurrence", args=[schedule.pk])


def sent(due: datetime = DUE, does: str = "skip", to: str = "", **more: Any) -> dict[str, Any]:
    day, _, hour = to.partition(" ")
    return {"due": due.isoformat(), "does": does, "to_0": day, "to_1": hour, "reason": "", **more}


def test_a_due_time_is_skipped_from_the_page_of_its_schedule(page: Page) -> None:
    schedule = nightly()
    shown = page.text(change_url(Schedule, schedule.pk))
    assert f'href="{url_of(schedule)}"' in shown
    form = page.text(url_of(schedule))
    assert "Sat, Oct 24, 2099, 02:30:00 CEST" in form
    assert "Mon, Oct 26, 2099, 02:30:00 CET" in form
    done = page.client.post(url_of(schedule), sent(reason=f"closed {EVIL}"))
    assert done["Location"] == change_url(Schedule, schedule.pk)
    assert message_of(done) == "Sat, Oct 24, 2099, 02:30:00 CEST is skipped."
    row = ScheduleException.objects.get()
    assert (row.due_at, row.skipped, row.requested_by) == (DUE, True, "ada")
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == (
        *(str(schedule.pk), "skipped 2099-10-24 02:30:00 CEST"),
    )
    shown = page.text(change_url(Schedule, schedule.pk))
    assert EVIL not in shown
    assert "skipped" in page.text(list_url(Schedule))
    assert "02:30:00 CEST: skipped" in page.read(url_of(schedule))


def test_a_due_time_is_moved_and_restored_in_the_time_zone_of_its_schedule(page: Page) -> None:
    schedule = nightly()
    page.client.post(url_of(schedule), sent(does="to", to="2099-10-23 23:00"))
    row = ScheduleException.objects.get()
    assert row.moved_to == datetime(2099, 10, 23, 21, tzinfo=UTC)
    schedule.refresh_from_db()
    assert schedule.next_due_at == row.moved_to
    text = page.read(change_url(Schedule, schedule.pk))
    assert "moved from Sat, Oct 24, 2099, 02:30:00 CEST" in text
    page.client.post(url_of(schedule), sent(does="restore"))
    assert not ScheduleException.objects.exists()
    messages = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert messages == [
        "moved 2099-10-24 02:30:00 CEST to 2099-10-23 23:00:00 CEST",
        "restored 2099-10-24 02:30:00 CEST",
    ]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"does": "to"}, "This field is required."),
        ({"does": "payload", "payload": ""}, "This field is required."),
        ({"does": "payload", "payload": "{"}, "Enter a valid JSON."),
        (
            {"does": "payload", "payload": '{"first": 5}', "to": "2099-10-23 23:00"},
            "This is for a due time that is moved to the new time.",
        ),
        ({"does": "skip", "to": "2099-10-23 23:00"}, "This is for a due time that is moved"),
        ({"does": "restore", "to": "2099-10-23 23:00"}, "This is for a due time that is moved"),
        ({"does": "skip", "payload": '{"first": 5}'}, "a due time that is given other arguments."),
        (
            {"does": "to", "to": "2099-10-23 23:00", "payload": "{}"},
            "This is for a due time that is given other arguments.",
        ),
        ({"does": "payload", "payload": '{"third": 3}'}, "third"),
        ({"does": "to", "to": "2026-01-01 00:00"}, "has passed"),
        ({"due": DUE + timedelta(minutes=1)}, "is no due time of the schedule"),
        ({"due": datetime(2026, 1, 1, tzinfo=UTC)}, "is no due time of the schedule"),
        ({"does": "restore"}, "has no exception"),
        ({"does": "destroy"}, "Select a valid choice"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    page: Page, given: dict[str, Any], why: str
) -> None:
    schedule = nightly(job_type="app.add", payload={"first": 1})
    answered = page.client.post(url_of(schedule), sent(**given))
    assert answered.status_code == 200
    assert why in words(answered)
    assert not ScheduleException.objects.exists()
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("due", ["", "tomorrow", "2099-10-24", "2099-13-45T00:00", EVIL])
def test_what_is_no_time_is_no_choice(page: Page, due: str) -> None:
    schedule = nightly()
    answered = page.client.post(url_of(schedule), {**sent(), "due": due})
    assert answered.status_code == 200
    assert EVIL not in answered.content.decode()
    assert not ScheduleException.objects.exists()


def test_other_arguments_need_the_permission_to_see_them(
    page: Page, page_of: Callable[..., Page]
) -> None:
    schedule = nightly(job_type="app.add", payload={"first": 1})
    page.client.post(url_of(schedule), sent(does="payload", payload='{"first": 5}'))
    assert ScheduleException.objects.get().payload == {"first": 5}
    assert "with other arguments" in page.read(change_url(Schedule, schedule.pk))
    other = page_of("view_schedule", "move_schedule", name="otto")
    text = other.text(url_of(schedule))
    assert 'name="payload"' not in text
    answered = other.client.post(url_of(schedule), sent(does="payload", payload='{"first": 6}'))
    assert "Select a valid choice" in words(answered)
    assert ScheduleException.objects.get().payload == {"first": 5}
    assert '"first": 5' not in html.unescape(other.text(change_url(Schedule, schedule.pk)))


def test_it_needs_a_permission_of_its_own(page_of: Callable[..., Page]) -> None:
    schedule = nightly()
    skip_occurrence("nightly", DUE)
    other = page_of("view_schedule", "change_schedule", "pause_schedule", name="otto")
    assert other.client.get(url_of(schedule)).status_code == 403
    assert other.client.post(url_of(schedule), sent(does="restore")).status_code == 403
    for url in (change_url(Schedule, schedule.pk), CALENDAR):
        text = other.text(url)
        assert url_of(schedule) not in text
        assert "skipped" in text
    assert ScheduleException.objects.exists()
    assert page_of("view_schedule", "move_schedule", name="olga").read(url_of(schedule))


def test_a_declared_schedule_can_have_exceptions(page: Page) -> None:
    with in_code("nightly", starts_at=START, every=86_400.0) as schedule:
        shown = page.read(change_url(Schedule, schedule.pk))
        assert "run now and backfilled, and its due times skipped and moved." in shown
        page.client.post(url_of(schedule), sent(START))
        assert ScheduleException.objects.get().skipped


def test_the_page_marks_what_is_no_longer_a_due_time(page: Page) -> None:
    schedule = nightly()
    skip_occurrence("nightly", DUE)
    schedule.cron = "40 2 * * *"
    schedule.save()
    text = page.read(change_url(Schedule, schedule.pk))
    assert "no longer a due time: does nothing" in text
    assert "2099, 02:30:00 CEST: skipped" in page.read(url_of(schedule))
    page.client.post(url_of(schedule), sent(does="restore"))
    assert not ScheduleException.objects.exists()


def test_the_form_begins_at_the_day_of_its_link(page: Page) -> None:
    schedule = nightly()
    text = page.text(f"{url_of(schedule)}?from=2099-12-24")
    assert "Thu, Dec 24, 2099, 02:30:00 CET" in text
    assert "24 Oct 2099" not in text
    for odd in ("yesterday", "0001-01-01", "9999-12-31", "2099-02-30"):
        assert page.client.get(f"{url_of(schedule)}?from={odd}").status_code == 200
    chosen = page.text(f"{url_of(schedule)}?due={(DUE + DAY).isoformat().replace('+', '%2B')}")
    assert f'value="{(DUE + DAY).isoformat()}" selected' in chosen


def chosen_in(text: str) -> tuple[str, str, str, str]:
    """The due time, what it does, its new time and its arguments, as a form shows them."""
    due = re.findall(r'<option value="([^"]*)" selected>', text)
    does = re.findall(r'name="does" value="(\w+)"[^>]* checked', text)
    to = [
        *re.findall(r'name="to_0" value="([^"]*)"', text),
        *re.findall(r'name="to_1" value="([^"]*)"', text),
    ]
    area = re.findall(r'<textarea name="payload"[^>]*>\s*(.*?)</textarea>', text, re.DOTALL)
    assert len(due) == 1
    return due[0], "".join(does), " ".join(to), html.unescape("".join(area))


def test_the_form_begins_with_the_due_time_of_its_link_and_what_that_does(page: Page) -> None:
    schedule = nightly(job_type="app.add", payload={"first": 1})
    winter = datetime(2099, 12, 24, 1, 30, tzinfo=UTC)
    url = f"{url_of(schedule)}?from=2099-12-24"
    skip_occurrence("nightly", DUE)
    plain = (winter.isoformat(), "", "", '{"first": 1}')
    assert chosen_in(page.text(url)) == plain
    move_occurrence("nightly", winter, winter + timedelta(hours=2, seconds=5), reason="late")
    moved = (winter.isoformat(), "to", "2099-12-24 04:30:05")
    assert chosen_in(page.text(url)) == (*moved, '{"first": 1}')
    assert 'value="late"' in page.text(url)
    change_occurrence("nightly", winter, {"first": 2})
    assert chosen_in(page.text(url)) == (*moved, '{"first": 2}')
    skip_occurrence("nightly", winter)
    assert chosen_in(page.text(url)) == (winter.isoformat(), "skip", "", '{"first": 1}')
    change_occurrence("nightly", winter, {"first": 3})
    assert chosen_in(page.text(url)) == (winter.isoformat(), "payload", "", '{"first": 3}')
    move_occurrence("nightly", winter, winter + 3 * DAY)
    assert chosen_in(page.text(url))[0] == winter.isoformat()
    assert chosen_in(page.text(url_of(schedule)))[0] == DUE.isoformat()


def test_the_day_of_a_link_is_one_of_the_calendar(page: Page, settings: Any) -> None:
    """Of its clock, not of that of the schedule."""
    settings.TIME_ZONE = "Asia/Tokyo"
    nightly(cron="30 0 * * *", timezone="America/New_York")
    for row in re.findall(r"<tr><td>.*?</tr>", page.text(CALENDAR), re.DOTALL):
        (url,) = re.findall(r'href="([^"]+\?from=[^"]+)"', row)
        due, *_ = chosen_in(page.text(url))
        day = url.partition("from=")[2]
        assert (datetime.fromisoformat(due) + timedelta(hours=9)).date().isoformat() == day


def test_a_link_may_name_a_due_time_that_is_not_listed(page: Page) -> None:
    schedule = nightly()
    far = datetime(2100, 7, 1, 0, 30, tzinfo=UTC)
    for named in ("2100-07-01T00:30:00%2B00:00", "2100-07-01T00:30Z", "2100-07-01T02:30"):
        text = page.text(f"{url_of(schedule)}?due={named}")
        assert chosen_in(text)[0] == far.isoformat()
        assert "Thu, Jul 1, 2100, 02:30:00 CEST" in text
        assert "no due time" not in text
    for odd, shown in (
        ("2100-07-01T00:31Z", "Thu, Jul 1, 2100, 02:31:00 CEST"),
        ("2020-07-01T00:30Z", "Wed, Jul 1, 2020, 02:30:00 CEST"),
        ("tomorrow", "tomorrow"),
    ):
        text = page.text(f"{url_of(schedule)}?due={odd}")
        assert f"{shown} is no due time that is to come." in text
        assert chosen_in(text)[0] == ""


def test_the_arguments_of_the_form_are_those_of_the_schedule_without_secrets(page: Page) -> None:
    schedule = nightly(job_type="app.add", payload={"first": 1})
    page.client.post(url_of(schedule), sent(does="payload", payload='{"first": 1}'))
    assert ScheduleException.objects.get().payload == {"first": 1}
    Schedule.objects.update(payload={"password": "hush"})
    ScheduleException.objects.all().delete()
    text = page.text(url_of(schedule))
    assert "hush" not in text
    assert chosen_in(text)[3] == ""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"does": "to", "to": "2099-10-23 23:00"}, "moved to Fri, Oct 23, 2099, 23:00:00 CEST"),
        ({"does": "payload", "payload": "{}"}, "given other arguments"),
        ({"does": "restore"}, "as its rule says again"),
    ],
)
def test_the_message_says_what_was_done(page: Page, given: dict[str, Any], told: str) -> None:
    schedule = nightly()
    skip_occurrence("nightly", DUE)
    done = page.client.post(url_of(schedule), sent(**given))
    assert message_of(done) == f"Sat, Oct 24, 2099, 02:30:00 CEST is {told}."


def test_a_broken_rule_has_a_form_and_a_reason(page: Page) -> None:
    schedule = nightly()
    Schedule.objects.update(cron="61 * * * *")
    assert "nightly" in page.read(url_of(schedule))
    assert "cannot be read" in words(page.client.post(url_of(schedule), sent()))
    assert page.client.get(change_url(Schedule, schedule.pk)).status_code == 200


def rows_of(page: Page) -> list[str]:
    text = page.text(CALENDAR)
    return [words(row) for row in re.findall(r"<tr><td>.*?</tr>", text, re.DOTALL)]


def test_the_calendar_shows_exceptions_and_leads_to_their_form(page: Page) -> None:
    schedule = nightly(timezone="UTC")
    first = START + timedelta(hours=2.5)
    skip_occurrence("nightly", first)
    move_occurrence("nightly", first + DAY, first + 2 * DAY + timedelta(hours=3))
    when = "at 02:30 every day UTC"
    assert rows_of(page) == [
        f"not due 0 nightly {when} 02:30: skipped Skip or move…",
        f"not due 0 nightly {when} 02:30: moved to Mon, Oct 26, 2099, 05:30:00 UTC Skip or move…",
        f"02:30, 05:30 2 nightly {when} 05:30: moved from Sun, Oct 25, 2099, 02:30:00 UTC"
        " Skip or move…",
    ]
    assert f'href="{url_of(schedule)}?from=2099-10-26"' in page.text(CALENDAR)


def test_the_calendar_counts_what_is_moved_within_a_busy_day(page: Page) -> None:
    nightly(cron="0 * * * *", timezone="UTC", job_type="app.add", payload={"first": 1})
    move_occurrence("nightly", START + timedelta(hours=23), START + timedelta(hours=12.5))
    change_occurrence("nightly", START + timedelta(hours=3), {"first": 2})
    skip_occurrence("nightly", START)
    first, second, _third = rows_of(page)
    assert first == (
        "01:00 – 22:00 23 nightly every hour UTC 00:00: skipped 03:00: with other arguments"  # noqa: RUF001
        " 23:00: moved to Sat, Oct 24, 2099, 12:30:00 UTC Skip or move…"
    )
    assert second.startswith("00:00 – 23:00 24 nightly")  # noqa: RUF001


def test_an_interval_in_a_zone_that_is_gone_stays_in_the_calendar(page: Page) -> None:
    schedule = nightly(cron="", every=86_400.0)
    Schedule.objects.update(timezone="Moon/1")
    assert len(rows_of(page)) == 3
    assert page.client.get(url_of(schedule)).status_code == 200


def test_the_list_shows_the_tick_that_was_written_last_and_when(page: Page) -> None:
    schedule = nightly()
    tick = (
        "INSERT INTO django_jobs_tick (schedule_id, due_at, outcome, reason, late_seconds,"
        " created_at) VALUES (%s, now() + %s::interval, %s, '', 0, now() + %s::interval)"
    )

    def shown() -> str:
        return words(page.client.get(list_url(Schedule)))

    run_sql(tick, [schedule.pk, "5 d", "fired", "-4 d"])
    assert re.search(r"fired 4 d\S* ago", shown())
    run_sql(tick, [schedule.pk, "-3 d", "suppressed", "-3 d"])
    assert re.search(r"suppressed 3 d\S* ago", shown())
    run_sql(tick, [schedule.pk, "-2 d", "skipped", "-2 d"])
    assert re.search(r"by request 2 d\S* ago", shown())


def test_a_due_time_that_is_moved_and_changed_shows_both(page: Page) -> None:
    schedule = nightly(job_type="app.add", payload={"first": 1})
    change_occurrence("nightly", DUE, {"first": 2})
    move_occurrence("nightly", DUE, DUE + timedelta(hours=1))
    there = "moved from Sat, Oct 24, 2099, 02:30:00 CEST, with other arguments"
    for url in (change_url(Schedule, schedule.pk), list_url(Schedule)):
        assert there in page.read(url)
    away = "moved to Sat, Oct 24, 2099, 03:30:00 CEST, with other arguments"
    assert f"02:30:00 CEST: {away}" in page.read(url_of(schedule))


def test_the_calendar_counts_each_of_two_due_times_at_one_moment(page: Page) -> None:
    nightly(cron="30 2,3,4 * * *", timezone="UTC")
    first = START + timedelta(hours=2.5)
    move_occurrence("nightly", first, first + timedelta(hours=1))
    move_occurrence("nightly", first + DAY, first + 2 * DAY)
    days = [row.partition(" nightly")[0] for row in rows_of(page)]
    assert days == [
        "03:30, 03:30, 04:30 3",
        "03:30, 04:30 2",
        "02:30, 02:30, 03:30, 04:30 4",
    ]
    skip_occurrence("nightly", first + timedelta(hours=1))
    assert rows_of(page)[0].startswith("03:30, 04:30 2 nightly")
    Schedule.objects.update(max_jobs=4)
    days = [row.partition(" nightly")[0] for row in rows_of(page)]
    assert days == ["03:30, 04:30 2", "03:30, 04:30 2", "not due 0"]
