"""A backfill in the console: first how many, then the jobs, then how far they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry

from django_jobs.admin.schedules.backfills import BackfillAdmin
from django_jobs.api.schedules import request_of
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import Backfill, Job, Schedule, Tick
from tests.admin.schedules.scheduling import backfill_url, new_schedule
from tests.admin.walking import Page, change_url, list_url, message_of, words
from tests.factories import run_sql

pytestmark = pytest.mark.django_db


def nightly(**fields: Any) -> Schedule:
    fields = {"cron": "30 2 * * *", "every": None, "timezone": "Europe/Paris", **fields}
    return new_schedule(name="nightly", **fields)


def span(begin: str = "2026-03-27 00:00", end: str = "2026-03-30 00:00", **more: Any) -> Any:
    (day, hour), (last, until) = begin.split(), end.split()
    return {"begin_0": day, "begin_1": hour, "end_0": last, "end_1": until, **more}


def test_it_shows_the_number_of_jobs_and_makes_them_once_confirmed(page: Page) -> None:
    schedule = nightly()
    url = backfill_url(schedule)
    assert "In the time zone of the schedule: Europe/Paris." in page.read(url)
    asked = page.client.post(url, span())
    text = words(asked)
    assert "It will make 3 jobs." in text
    assert re.search(r"Mar 29, (2026, )?03:00:00 CEST", text)
    assert not Job.objects.exists()
    done = page.client.post(url, span(confirmed="3"))
    backfill = Backfill.objects.get()
    assert done["Location"] == change_url(Backfill, backfill.pk)
    assert message_of(done) == "3 jobs were made."
    assert (backfill.job_count, backfill.requested_by) == (3, "ada")
    assert Job.objects.filter(status="ready").count() == 3
    entry = LogEntry.objects.get()
    assert entry.object_id == str(schedule.pk)
    assert entry.change_message.endswith(": 3 jobs")


def test_many_due_times_show_the_first_and_the_last(page: Page) -> None:
    text = words(page.client.post(backfill_url(nightly()), span("2026-01-01 00:00")))
    assert "It will make 88 jobs." in text
    assert "and 78 more" in text
    assert "Jan 1, " in text
    assert "Mar 29, " in text


def test_a_changed_number_of_jobs_is_confirmed_again(page: Page) -> None:
    answered = page.client.post(backfill_url(nightly()), span(confirmed="2"))
    assert "It will make 3 jobs." in words(answered)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("begin", "end", "why"),
    [
        ("2026-03-30 00:00", "2026-03-27 00:00", "ends before it begins"),
        ("2026-03-30 00:00", "2999-01-01 00:00", "must be in the past"),
        ("2026-03-30 03:00", "2026-03-30 04:00", "Every due time in this range already"),
        ("2026-03-29 02:30", "2026-03-30 00:00", "may not exist"),
        ("1971-01-01 00:00", "2026-03-30 00:00", "more than 10,000 due times"),
        ("tomorrow 00:00", "2026-03-30 00:00", "Enter a valid date"),
    ],
)
def test_an_invalid_range_is_refused(page: Page, begin: str, end: str, why: str) -> None:
    answered = page.client.post(backfill_url(nightly()), span(begin, end, confirmed="1"))
    assert answered.status_code == 200
    assert why in words(answered)
    assert not Backfill.objects.exists()


def test_a_broken_and_a_missing_schedule_are_reported(page: Page) -> None:
    schedule = nightly(timezone="Mars/Olympus")
    assert "no time zone is called" in words(page.client.post(backfill_url(schedule), span()))
    gone = nightly_of_a_type_that_is_gone()
    answered = page.client.post(backfill_url(gone), span(confirmed="3"))
    assert "no job type is named" in words(answered)
    schedule.pk = 4711
    assert page.client.get(backfill_url(schedule)).status_code == 404


def nightly_of_a_type_that_is_gone() -> Schedule:
    schedule = Schedule.objects.get(name="nightly")
    schedule.delete()
    return nightly(job_type="app.gone")


def test_the_progress_of_a_backfill_is_shown_and_it_can_be_cancelled(page: Page) -> None:
    schedule = nightly()
    page.client.post(backfill_url(schedule), span(confirmed="3"))
    backfill = Backfill.objects.get()
    first, second, third = Job.objects.order_by("id").values_list("pk", flat=True)
    job_operations.cancel([first])
    run_sql("DELETE FROM django_jobs_job WHERE id = %s", [second])
    url = change_url(Backfill, backfill.pk)
    for text in (words(page.client.get(url)),
                 words(page.client.get(change_url(Schedule, schedule.pk)))):  # fmt: skip
        assert "2 of 3 ended" in text
        assert "1 deleted" in text
    assert f"{list_url(Tick)}?backfill__id__exact={backfill.pk}" in page.text(url)
    page.text(list_url(Tick) + f"?backfill__id__exact={backfill.pk}")
    assert 'value="cancel_backfills"' in page.text(change_url(Schedule, schedule.pk))
    page.act(Backfill, "cancel_backfills", backfill.pk)
    assert Job.objects.get(pk=third).status == "cancelled"
    assert 'value="cancel_backfills"' not in page.text(url)
    assert 'value="cancel_backfills"' not in page.text(change_url(Schedule, schedule.pk))
    assert "it is already cancelled" in page.act(Backfill, "cancel_backfills", backfill.pk)


def test_an_ended_backfill_offers_no_cancel(page: Page) -> None:
    page.client.post(backfill_url(nightly()), span(confirmed="3"))
    job_operations.cancel(list(Job.objects.values_list("pk", flat=True)))
    backfill = Backfill.objects.get()
    text = page.read(change_url(Backfill, backfill.pk))
    assert "ended" in text
    assert 'value="cancel_backfills"' not in text


def test_a_job_of_a_backfill_is_linked_to_it(page: Page) -> None:
    schedule = nightly()
    page.client.post(backfill_url(schedule), span(confirmed="3"))
    text = page.read(change_url(Job, Job.objects.first().pk))
    assert change_url(Schedule, schedule.pk) in text
    assert change_url(Backfill, Backfill.objects.get().pk) in text


def test_the_page_of_a_schedule_offers_to_cancel_its_backfill_to_those_who_may(
    page_of: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = nightly()
    allowed = page_of("view_schedule", "backfill_schedule", name="otto")
    allowed.client.post(backfill_url(schedule), span(confirmed="3"))
    page = page_of("view_schedule", "change_schedule", "run_schedule", "pause_schedule")
    for user, is_offered in ((allowed, True), (page, False)):
        text = user.text(change_url(Schedule, schedule.pk))
        assert ('value="cancel_backfills"' in text) == is_offered
    pk = Backfill.objects.get().pk
    monkeypatch.setattr(BackfillAdmin, "has_backfill_permission", lambda self, request: True)
    assert page.confirm(Backfill, "cancel_backfills", pk).status_code == 403
    assert Backfill.objects.get().cancelled_at is None


def test_a_due_time_that_made_a_job_makes_no_second(page: Page) -> None:
    schedule = nightly()
    page.client.post(backfill_url(schedule), span("2026-03-28 00:00", confirmed="2"))
    assert "It will make 1 job." in words(page.client.post(backfill_url(schedule), span()))
    schedule_operations.backfill(schedule, *_all(), request_of)
    assert Job.objects.count() == 3
    answered = page.client.post(backfill_url(schedule), span())
    assert "Every due time in this range already has a job." in words(answered)


def _all() -> tuple[Any, Any]:
    ((begin, end),) = run_sql("SELECT '2026-03-27'::timestamptz, '2026-03-30'::timestamptz")
    return begin, end
