"""The preview: what a rule comes to, in words and times, while it is edited."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.urls import reverse
from django.utils import timezone

from django_jobs.admin.schedules.display import in_words
from django_jobs.domain.numbers import exactly
from tests.admin.schedules.scheduling import add_url, filled_in, new_schedule, schedulable
from tests.admin.walking import Page, change_url

pytestmark = pytest.mark.django_db


def preview(page: Page, **rule: str) -> dict[str, Any]:
    """What the page is told."""
    answered = page.client.get(reverse("admin:django_jobs_schedule_preview"), rule)
    assert answered.status_code == 200
    assert "no-store" in answered["Cache-Control"]
    answer: dict[str, Any] = answered.json()
    return answer


def test_five_times_are_previewed_local_and_utc_with_clock_changes(page: Page) -> None:
    answer = preview(
        page, cron="30 2 * * *", timezone="Europe/Paris", dst="once",
        starts_at_0="2099-03-28", starts_at_1="00:00",
    )  # fmt: skip
    assert answer["words"] == "at 02:30 every day"
    assert answer["zone"] == "Europe/Paris"
    assert answer["error"] == ""
    assert len(answer["times"]) == 5
    assert answer["times"][1] == {
        "local": "Sun, Mar 29, 2099, 03:00:00 CEST",
        "utc": "Sun, Mar 29, 2099, 01:00:00 UTC",
        "change": "clock goes forward",
        "exception": "",
    }
    assert answer["times"][0]["change"] == answer["times"][2]["change"] == ""


@pytest.mark.parametrize("cron, noted", [("0 0 */2 * 1", True), ("0 0 13 * fri", False)])
def test_a_rule_that_needs_both_day_fields_elsewhere_is_noted(
    page: Page, cron: str, noted: bool
) -> None:
    note = preview(page, cron=cron)["note"]
    assert ("either day field is due; Debian's cron and pg_cron need both." in note) is noted


def test_the_policy_and_the_bounds_count(page: Page) -> None:
    bounds = {
        "starts_at_0": "2099-03-28", "starts_at_1": "00:00",
        "ends_at_0": "2099-03-30", "ends_at_1": "12:00",
    }  # fmt: skip
    rule = {"cron": "30 2 * * *", "timezone": "Europe/Paris", **bounds}
    assert len(preview(page, **rule, dst="once")["times"]) == 3
    answer = preview(page, **rule, dst="skip")
    assert len(answer["times"]) == 2
    assert answer["note"] == "It has no due times after these."


@pytest.mark.parametrize(
    "ends_at, rule, note",
    [
        ("2099-04-12", {"cron": "30 2 * * *"}, "It has 15 due times until it ends."),
        ("2099-04-12", {"cron": "30 2 * * *", "dst": "skip"}, "It has 14 due times until it ends."),
        ("2099-04-12", {"every": "3600"}, "It has 361 due times until it ends."),
    ],
)
def test_the_due_times_until_its_end_are_counted(
    page: Page, ends_at: str, rule: dict[str, str], note: str
) -> None:
    """From the noon of 28 March; on the 29th the clock of Paris goes forward."""
    bounds = {
        "starts_at_0": "2099-03-28", "starts_at_1": "12:00",
        "ends_at_0": ends_at, "ends_at_1": "12:00",
    }  # fmt: skip
    given = {"timezone": "Europe/Paris", "dst": "once", **bounds, **rule}
    assert preview(page, **given)["note"] == note


def test_due_times_are_counted_for_a_year_at_most(page: Page) -> None:
    start = timezone.now() + timedelta(hours=1)
    rule = {"every": "86400", "starts_at_0": f"{start:%Y-%m-%d}", "starts_at_1": f"{start:%H:%M}"}
    assert preview(page, **rule)["note"] == ""
    answer = preview(page, **rule, ends_at_0="2199-01-01", ends_at_1="00:00")
    assert answer["note"] == "It has 365 due times within 365 days, and ends later."
    assert len(answer["times"]) == 5
    answer = preview(page, **rule, ends_at_0="9999-12-31", ends_at_1="23:59")
    assert "ends later" in answer["note"]


def test_due_times_of_the_year_9999_are_previewed(page: Page) -> None:
    bounds = {
        "starts_at_0": "9999-03-28", "starts_at_1": "12:00",
        "ends_at_0": "9999-06-28", "ends_at_1": "12:00",
    }  # fmt: skip
    answer = preview(page, every="86400", **bounds)
    assert len(answer["times"]) == 5
    assert answer["error"] == answer["note"] == ""


def test_an_interval_and_a_name_are_previewed(page: Page) -> None:
    answer = preview(page, every="0.5")
    assert "from 1 second to 366 days" in answer["error"]
    answer = preview(page, every="5400", timezone="UTC")
    assert answer["words"] == "every 1 h 30 min"
    assert "missing" in preview(page, cron="H H * * *")["error"]
    assert len(preview(page, cron="H H * * *", name="nightly")["times"]) == 5


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"cron": "R * * * *"},
        {"cron": "0-999999999 * * * *"},
        {"cron": "* " * 90},
        {"cron": "5-5 * * * *"},
        {"cron": "59/15 * * * *"},
        {"cron": "0 0 30 2 *"},
        {"cron": "0 0 * * *", "every": "60"},
        {"cron": "0 0 * * *", "timezone": "../etc/passwd"},
        {"cron": "0 0 * * *", "dst": "never"},
        {"cron": "0 0 * * *", "starts_at_0": "x", "starts_at_1": "y"},
        {"cron": "0 0 * * *", "starts_at_0": "2026-01-01", "starts_at_1": ""},
        {"every": "nan"},
        {"every": "9" * 400},
        {"cron": "\x00"},
        {"cron": "0 0 * * *", "name": "n" * 500},
    ],
)
def test_a_wrong_rule_is_answered_with_its_error(page: Page, rule: dict[str, str]) -> None:
    answer = preview(page, **rule)
    assert answer["error"]
    assert not answer.get("times")


def test_a_line_with_a_zone_is_answered_with_the_field_for_it(page: Page) -> None:
    error = preview(page, cron="CRON_TZ=UTC 0 3 * * *")["error"]
    assert error.endswith("= is no part of the expression: give UTC as its time zone")


def test_the_preview_requires_the_view_or_add_permission(page_of: Callable[..., Page]) -> None:
    for name, permission in (
        ("a", "view_schedule"),
        ("b", "add_schedule"),
        ("c", "change_schedule"),
    ):
        assert preview(page_of(permission, name=name), every="60")["times"]
    url = reverse("admin:django_jobs_schedule_preview")
    assert page_of("view_job").client.get(url).status_code == 403


def test_a_page_has_its_times_without_a_script(page: Page) -> None:
    schedule = new_schedule(cron="30 2 * * 1-5", every=None, timezone="Europe/Paris")
    text = page.read(change_url(type(schedule), schedule.pk))
    assert "at 02:30 on weekdays" in text
    assert text.count(", 02:30:00 CE") == 5
    ended = new_schedule(name="ended", ends_at="2020-01-01T00:00:00Z")
    assert "It has no further due times." in page.read(change_url(type(ended), ended.pk))


def test_a_refused_form_previews_its_values(page: Page) -> None:
    with schedulable():
        assert "Enter a cron expression or an interval." in page.read(add_url())
        kept = page.client.post(add_url(), filled_in(cron="15 3 * * *"))
        assert kept.content.decode().count(", 03:15:00 CE") == 5
        kept = page.client.post(add_url(), filled_in(cron="5-5 * * * *", argument_customer="7"))
        assert "a range of one value" in kept.content.decode().partition("jobs-next")[2]


def test_the_script_is_served_as_a_file_and_writes_text_only(page: Page) -> None:
    with schedulable():
        assert "django_jobs/schedule_preview.js" in page.text(add_url())
    path = finders.find("django_jobs/schedule_preview.js")
    assert isinstance(path, str)
    with open(path) as file:
        script = file.read()
    assert "innerHTML" not in script
    assert "eval(" not in script


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.0, "1 s"), (90.0, "1 min 30 s"), (3723.5, "1 h 2 min 3.5 s"), (90_000.0, "1 d 1 h")],
)
def test_an_interval_is_shown_exactly(seconds: float, words: str) -> None:
    assert exactly(seconds) == words
    assert in_words("", seconds) == f"every {words}"
