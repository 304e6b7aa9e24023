"""The form of a schedule: what may be said in it, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import override_settings

from django_jobs.admin.schedules.form import zones
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Queue, Schedule
from tests.admin.schedules.scheduling import add_url, filled_in, new_schedule, schedulable
from tests.admin.walking import Page, change_url, list_url
from tests.app.jobs import noop

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _schedulable() -> Any:
    with schedulable():
        yield


def added(page: Page, job_type: str = "app.report", **values: Any) -> Schedule:
    answered = page.client.post(add_url(job_type), filled_in(**values))
    assert answered.status_code == 302, answered.context["adminform"].form.errors
    return Schedule.objects.get(name=values.get("name", "nightly"))


def refused(page: Page, job_type: str = "app.report", **values: Any) -> dict[str, list[str]]:
    values.setdefault("argument_customer", "7")
    answered = page.client.post(add_url(job_type), filled_in(**values))
    assert answered.status_code == 200
    assert not Schedule.objects.exists()
    errors: dict[str, list[str]] = answered.context["adminform"].form.errors
    return errors


def test_the_add_page_first_offers_the_schedulable_job_types(page: Page) -> None:
    text = page.read(add_url("").partition("?")[0])
    assert 'href="?job_type=app.report"' in text
    assert "Tell a customer how things stand." in text
    assert "Not shown." not in text
    assert "?job_type=app.noop" not in text
    assert "other job types are not offered: they are not declared" in text
    assert "<li>app.noop</li>" in text


@pytest.mark.parametrize("name", ["app.noop", "app.gone", "os.system"])
def test_another_job_type_is_refused(page: Page, name: str) -> None:
    assert f"{name} is not a job type that is declared with schedulable=True" in page.read(
        add_url(name)
    )
    page.client.post(add_url(name), filled_in(job_type=name))
    assert not Schedule.objects.exists()


def test_a_job_type_in_the_posted_form_is_ignored(page: Page) -> None:
    values = filled_in(argument_customer="7", job_type="app.noop", payload='{"x": 1}')
    assert page.client.post(add_url(), values).status_code == 302
    schedule = Schedule.objects.get()
    assert schedule.job_type == "app.report"
    assert schedule.payload == {"customer": 7}


def test_an_empty_field_is_the_handlers_default(page: Page) -> None:
    text = page.read(add_url())
    for help_text in (
        "Empty: draft.",
        "Empty: yes.",
        "Empty: 0.5.",
        "Empty: none given.",
        "Empty: r.",
    ):
        assert help_text in text
    schedule = added(page, argument_customer="7")
    assert schedule.payload == {"customer": 7}
    assert (schedule.cron, schedule.timezone) == ("30 2 * * *", "Europe/Paris")
    Scheduling().look()
    schedule.refresh_from_db()
    assert schedule.next_due_at is not None


def test_every_kind_of_argument_has_its_field(page: Page) -> None:
    schedule = added(
        page, argument_customer="-7", argument_kind="1", argument_day="2026-03-29",
        argument_share="0.25", argument_loud="1", argument_note="a\r\nb", argument_api_key="k",
        argument_colour="1", argument_parts="[]",
    )  # fmt: skip
    payload = {
        "customer": -7, "kind": "final", "day": "2026-03-29", "share": 0.25, "loud": False,
        "note": "a\nb", "api_key": "k", "colour": "g", "parts": [],
    }  # fmt: skip
    assert schedule.payload == payload
    text = page.read(change_url(Schedule, schedule.pk))
    assert '<option value="1" selected>final' in text
    assert '<option value="1" selected>no' in text
    assert '<option value="1" selected>g' in text
    assert 'value="k"' not in text


def test_a_page_saves_what_it_shows(page: Page) -> None:
    payload = {
        "customer": 7, "kind": "final", "share": 0.25, "loud": False, "note": "a\nb",
        "api_key": "s3cret", "colour": "g", "parts": [1], "day": None,
    }  # fmt: skip
    schedule = new_schedule(job_type="app.report", payload=payload)
    url = change_url(Schedule, schedule.pk)
    answered = page.client.get(url)
    assert "s3cret" not in answered.content.decode()
    form = answered.context["adminform"].form
    shown = {name: form.initial.get(name) for name in form.fields if name.startswith("argument_")}
    shown = {name: "" if value is None else value for name, value in shown.items()}
    done = page.client.post(url, filled_in(name="hourly", queue="bulk", **shown))
    assert done.status_code == 302
    schedule.refresh_from_db()
    assert schedule.payload == payload
    assert schedule.queue == "bulk"
    entry = LogEntry.objects.get()
    assert "s3cret" not in entry.change_message


def test_arguments_of_any_name_and_without_an_annotation_are_json(page: Page) -> None:
    schedule = added(
        page, "app.collect", argument_where="x", more_arguments='{"password": "p", "n": [1]}'
    )
    assert schedule.payload == {"where": "x", "password": "p", "n": [1]}
    url = change_url(Schedule, schedule.pk)
    text = page.read(url)
    assert '{"n": [1]}' in text
    assert '"p"' not in text
    page.client.post(url, filled_in(argument_where="y", more_arguments='{"n": 2}'))
    schedule.refresh_from_db()
    assert schedule.payload == {"where": "y", "password": "p", "n": 2}
    assert added(page, "app.count_up", name="c", argument_step="null").payload == {"step": None}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("argument_customer", ""),
        ("argument_customer", "seven"),
        ("argument_share", "nan"),
        ("argument_kind", "7"),
        ("argument_day", "tomorrow"),
        ("argument_parts", "[1"),
        ("argument_parts", "[NaN]"),
        ("argument_parts", "[" * 5000 + "]" * 5000),
        ("argument_parts", "9" * 5000),
        ("name", ""),
        ("cron", "* * *"),
        ("cron", "0 0 30 2 *"),
        ("cron", "0 0 * * R"),
        ("cron", ""),
        ("every", "60"),
        ("timezone", "Mars/Olympus"),
        ("queue", "nowhere"),
        ("priority", "101"),
        ("overlap", "maybe"),
        ("overlap_limit", "0"),
        ("pause_after_dead", "0"),
        ("jitter_seconds", "-1"),
    ],
)
def test_input_that_would_fail_in_a_worker_is_refused_with_the_reason(
    page: Page, field: str, value: str
) -> None:
    errors = refused(page, **{field: value})
    where = {"every": "cron"}.get(field, field)
    assert where in errors or "nested deeper" in str(errors["__all__"])


@pytest.mark.parametrize(
    ("zone", "advice"),
    [
        ("UTC", "give UTC as its time zone"),
        ("Mars/X", "give Europe/Paris as its time zone or the like; no time zone is"),
    ],
)
def test_a_line_with_a_zone_is_refused_with_the_field_for_it(
    page: Page, zone: str, advice: str
) -> None:
    (error,) = refused(page, cron=f"CRON_TZ={zone} 0 3 * * *")["cron"]
    assert f"CRON_TZ= is no part of the expression: {advice}" in error


def test_a_policy_without_its_limit_and_a_duplicate_name_are_refused(page: Page) -> None:
    assert "catch_up_limit" in refused(page, catch_up="at_most")
    new_schedule(name="nightly")
    again = page.client.post(add_url(), filled_in(argument_customer="7"))
    assert "name" in again.context["adminform"].form.errors


@override_settings(DJANGO_JOBS={"MAX_PAYLOAD_BYTES": 100})
def test_a_payload_that_is_too_large_is_refused(page: Page) -> None:
    assert "app.report" in str(refused(page, argument_note="x" * 200)["__all__"])


def test_an_argument_with_a_field_is_not_among_the_others(page: Page) -> None:
    errors = refused(page, "app.collect", argument_where="x", more_arguments='{"where": 1}')
    assert "where has a field in this form." in str(errors["more_arguments"])
    assert "more_arguments" in refused(
        page, "app.collect", argument_where="x", more_arguments="[1]"
    )


def test_a_full_queue_does_not_keep_a_schedule_from_being_saved(page: Page) -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=1)
    noop.using(queue="bulk").enqueue()
    Queue.objects.forget_recent()
    added(page, argument_customer="7")


def test_the_form_lists_the_zones_that_a_rule_accepts(page: Page) -> None:
    flat = [name for name, group in zones() if isinstance(group, str)]
    flat += [name for _, group in zones() if not isinstance(group, str) for name, _ in group]
    assert {"UTC", "Europe/Paris", "Pacific/Apia"} <= set(flat)
    assert not {"localtime", "posixrules", "Factory"} & set(flat)
    assert not [name for name in flat if name.startswith(("right/", "posix/"))]


def test_a_zone_that_no_longer_exists_is_shown_and_refused(page: Page) -> None:
    schedule = new_schedule(
        job_type="app.count_up", payload={"step": 1}, every=None, cron="0 1 * * *",
        timezone="Mars/Olympus",
    )  # fmt: skip
    url = change_url(Schedule, schedule.pk)
    assert '<option value="Mars/Olympus" selected>Mars/Olympus (unknown)' in page.read(url)
    values = filled_in(name="hourly", argument_step="1", cron="0 1 * * *")
    kept = page.client.post(url, {**values, "timezone": "Mars/Olympus"})
    assert "no time zone is called" in kept.content.decode()
    assert page.client.post(url, values).status_code == 302
    schedule.refresh_from_db()
    assert (schedule.error, schedule.stale) == ("", True)


def test_a_pause_while_the_form_was_open_stays(page: Page) -> None:
    schedule = new_schedule(job_type="app.count_up", payload={"step": 1})
    schedule_operations.pause([schedule.pk], reason="a while")
    values = filled_in(name="hourly", cron="", every="60", argument_step="2")
    page.client.post(change_url(Schedule, schedule.pk), {**values, "paused_reason": "none"})
    schedule.refresh_from_db()
    assert (schedule.every, schedule.payload) == (60.0, {"step": 2})
    assert (schedule.paused_reason, schedule.is_armed) == ("a while", False)


def test_an_update_of_other_fields_keeps_the_next_due_time(page: Page) -> None:
    schedule = new_schedule(job_type="app.count_up", payload={"step": 1}, timezone="Europe/Paris")
    due = schedule.next_due_at
    values = filled_in(name="hourly", cron="", every="3600", argument_step="2", priority="5")
    assert page.client.post(change_url(Schedule, schedule.pk), values).status_code == 302
    schedule.refresh_from_db()
    assert (schedule.priority, schedule.next_due_at, schedule.stale) == (5, due, False)


def test_arguments_need_the_permission_to_see_payloads(
    page_of: Callable[..., Page],
) -> None:
    page = page_of("view_schedule", "change_schedule", "add_schedule")
    schedule = new_schedule(job_type="app.report", payload={"customer": 987654})
    url = change_url(Schedule, schedule.pk)
    text = page.read(url)
    assert "Hidden: requires the permission" in text
    assert "987654" not in text + page.read(add_url(copy=schedule.pk))
    values = filled_in(name="hourly", priority="5", argument_customer="1")
    assert page.client.post(url, values).status_code == 302
    schedule.refresh_from_db()
    assert (schedule.priority, schedule.payload) == (5, {"customer": 987654})


def test_a_secret_is_not_copied(page: Page) -> None:
    payload = {"customer": 7, "api_key": "s3cret"}
    schedule = new_schedule(job_type="app.report", payload=payload)
    text = page.text(add_url(copy=schedule.pk))
    assert "s3cret" not in text
    assert 'name="argument_customer" value="7"' in text


@pytest.mark.parametrize("copy", ["0", "x", "9" * 30, "-1"])
def test_a_copy_of_a_missing_schedule_is_an_empty_form(page: Page, copy: str) -> None:
    assert " copy" not in page.text(add_url(copy=copy)).replace("copyright", "")


def test_the_filter_of_the_list_does_not_lose_the_job_type(page: Page) -> None:
    new_schedule()
    url = add_url(_changelist_filters="state%3Don")
    text = page.read(url)
    assert '/add/?_changelist_filters=state%3Don&job_type=app.report"' in text
    assert page.client.post(url, filled_in(argument_customer="7")).status_code == 302
    page.text(list_url(Schedule))
