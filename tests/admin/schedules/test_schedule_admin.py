"""Schedules in the console: the list, the page, the verbs, and who may do what."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_jobs.api.schedules import request_of
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Backfill, Job, Schedule, Tick
from tests.admin.schedules.scheduling import add_url, filled_in, in_code, new_schedule, schedulable
from tests.admin.walking import Page, change_url, list_url, message_of
from tests.app.jobs import noop
from tests.factories import listening, register_worker, run_sql

pytestmark = pytest.mark.django_db
MODELS = (Schedule, Tick, Backfill)
BADGE = r'field-name.*?>([^<]+)</a>.*?field-state"><span class="jobs-badge jobs-(\w+)'


def one_of_each_state() -> dict[str, Schedule]:
    found = {
        "on": new_schedule(name="on", cron="30 2 * * 1-5", every=None, timezone="Europe/Paris"),
        "paused": new_schedule(name="paused"),
        "error": new_schedule(name="error", cron="5 4 * * *", every=None, timezone="Mars/Olympus"),
        "disabled": new_schedule(name="disabled", enabled=False),
        "ended": new_schedule(name="ended", ends_at="2020-01-01T00:00:00Z"),
        "overdue": new_schedule(name="overdue"),
    }
    schedule_operations.pause([found["paused"].pk], reason="holidays")
    overdue = found["overdue"].pk
    run_sql(
        "UPDATE django_jobs_schedule SET next_due_at = now() - interval '1 hour' WHERE id = %s",
        [overdue],
    )
    return found


def states(page: Page, query: str = "") -> dict[str, str]:
    """The badge of each listed schedule."""
    text = page.read(list_url(Schedule) + query)
    return dict(re.findall(BADGE, text, re.DOTALL))


def test_the_list_shows_job_type_rule_and_state(page: Page) -> None:
    one_of_each_state()
    assert states(page) == {name: name for name in one_of_each()}
    text = page.read(list_url(Schedule))
    assert "at 02:30 on weekdays" in text
    assert "Europe/Paris" in text
    assert "every 1 h" in text
    assert "holidays" in text
    assert "no time zone is called 'Mars/Olympus'" in text
    assert "domain.cron" not in text


def one_of_each() -> list[str]:
    return ["on", "paused", "error", "disabled", "ended", "overdue"]


@pytest.mark.parametrize("state", one_of_each())
def test_the_state_filter_agrees_with_the_badge(page: Page, state: str) -> None:
    one_of_each_state()
    assert states(page, f"?state={state}") == {state: state}


def test_the_other_filters_and_the_search_narrow(page: Page) -> None:
    new_schedule(name="mine")
    new_schedule(name="bulky", queue="bulk")
    with in_code("theirs", job_type="app.add", payload={"first": 1}):
        assert states(page, "?queue=bulk") == {"bulky": "on"}
        assert states(page, "?queue=default") == {"mine": "on", "theirs": "on"}
        assert states(page, "?job_type=app.add") == {"theirs": "on"}
        assert states(page, "?declared=yes") == {"theirs": "on"}
        assert states(page, "?declared=no") == {"mine": "on", "bulky": "on"}
        assert states(page, "?q=ULK") == {"bulky": "on"}
        assert states(page, "?q=app.add") == {"theirs": "on"}
        assert states(page, "?q=type:app.add*") == {"theirs": "on"}


def test_the_last_tick_is_shown(page: Page) -> None:
    schedule = new_schedule()
    schedule_operations.run_now([schedule.pk], request_of)
    assert "jobs-fired" in page.text(list_url(Schedule))
    text = page.read(change_url(Schedule, schedule.pk))
    assert "run now by the command line" in text
    assert change_url(Job, Job.objects.get().pk) in text
    assert f"{list_url(Tick)}?schedule__id__exact={schedule.pk}" in text


def test_a_job_is_linked_to_its_schedule_and_its_due_time(page: Page) -> None:
    schedule = new_schedule(timezone="Asia/Tokyo")
    schedule_operations.run_now([schedule.pk], request_of)
    url = change_url(Job, Job.objects.get().pk)
    text = page.read(url)
    assert change_url(Schedule, schedule.pk) in text
    assert "JST" in text
    pk = schedule.pk
    schedule.delete()
    assert f"schedule {pk} (deleted)" in page.read(url)
    plain = page.read(change_url(Job, noop.enqueue().pk))
    assert "Schedule:" not in plain


def test_a_job_that_waits_for_its_schedule_says_so(page: Page) -> None:
    schedule = new_schedule()
    schedule_operations.run_now([schedule.pk], request_of)
    run_sql("UPDATE django_jobs_job SET status = 'waiting'")
    text = page.read(change_url(Job, Job.objects.get().pk))
    link = f'<a href="{change_url(Schedule, schedule.pk)}">{schedule.name}</a>'
    assert f"Waits for the previous job of the schedule {link}." in text


def test_the_list_warns_if_no_worker_looks_at_schedules(page: Page) -> None:
    assert "so none is fired" not in page.read(list_url(Schedule))
    new_schedule()
    assert "No live worker checks the schedules, so none fires." in page.read(list_url(Schedule))
    worker = register_worker()
    run_sql("UPDATE django_jobs_worker SET schedules_seen_at = now() - interval '10 minutes'")
    assert "No worker has checked the schedules for 10 min" in page.read(list_url(Schedule))
    run_sql("UPDATE django_jobs_worker SET schedules_seen_at = now() WHERE id = %s", [worker])
    assert "No worker has looked" not in page.read(list_url(Schedule))


def test_the_ticks_of_one_schedule_come_in_the_order_of_their_due_times(page: Page) -> None:
    schedule, other = new_schedule(), new_schedule(name="other")
    schedule_operations.run_now([schedule.pk], request_of)
    schedule_operations.run_now([other.pk], request_of)
    query = f"?schedule__id__exact={schedule.pk}"
    listed = page.client.get(list_url(Tick) + query).context["cl"]
    assert [tick.schedule_id for tick in listed.result_list] == [schedule.pk]
    assert 'ORDER BY "django_jobs_tick"."due_at" DESC' in str(listed.queryset.query)
    page.text(change_url(Tick, Tick.objects.first().pk))
    assert page.client.get(list_url(Tick) + "?job__payload__x=1").status_code == 400


def test_a_broken_schedule_does_not_stop_the_others_from_run_now(page: Page) -> None:
    sound, broken = new_schedule(), new_schedule(name="broken", job_type="app.gone")
    message = page.act(Schedule, "run_schedules_now", sound.pk, broken.pk)
    made = Job.objects.order_by("pk").last()
    assert made is not None
    link = f'<a href="{change_url(Job, made.pk)}">#{made.pk}</a>'
    assert f"1 schedule made a job. {link}" in message
    assert f"#{broken.pk}: no job type is named 'app.gone'" in message
    assert Job.objects.get().schedule_id == sound.pk


def test_a_schedule_in_error_is_resumed(page: Page) -> None:
    schedule = new_schedule()
    run_sql("UPDATE django_jobs_schedule SET error = 'boom', next_due_at = NULL")
    assert 'value="resume_schedules"' in page.text(change_url(Schedule, schedule.pk))
    page.act(Schedule, "resume_schedules", schedule.pk)
    Scheduling().look()
    schedule.refresh_from_db()
    assert schedule.error == ""
    assert schedule.next_due_at is not None


def test_one_is_duplicated_at_a_time(page: Page) -> None:
    with schedulable():
        first = new_schedule(job_type="app.count_up", payload={"step": 3}, queue="bulk")
        second = new_schedule(name="other", job_type="app.count_up")
        done = page.ask(Schedule, "duplicate_schedule", first.pk)
        text = page.read(done["Location"])
        assert 'value="hourly copy"' in text
        assert re.search(r'name="argument_step"[^>]*>\s*3<', text)
        assert '<option value="bulk" selected>' in text
        page.ask(Schedule, "duplicate_schedule", first.pk, second.pk)
        assert "Choose one schedule" in page.read(list_url(Schedule))
    assert Schedule.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_of_a_change_and_a_deletion(page: Page) -> None:
    with schedulable(), listening() as heard:
        page.client.post(add_url("app.count_up"), filled_in(argument_step="1"))
        assert ":schedules" in heard()
    pk = Schedule.objects.get().pk
    with listening() as heard:
        page.client.post(reverse("admin:django_jobs_schedule_delete", args=[pk]), {"post": "yes"})
        assert ":schedules" in heard()


def test_a_run_now_that_is_sent_twice_makes_one_job(page: Page) -> None:
    schedule = new_schedule()
    asked = page.ask(Schedule, "run_schedules_now", schedule.pk).content.decode()
    (number,) = re.findall(r'name="form_number" value="(\w+)"', asked)
    first, again = (
        message_of(page.confirm(Schedule, "run_schedules_now", schedule.pk, form_number=number))
        for _ in range(2)
    )
    assert "1 schedule made a job." in first
    assert "this form was sent twice, and has made one job" in again
    assert Job.objects.count() == 1
    assert number not in LogEntry.objects.get().change_message
    page.act(Schedule, "run_schedules_now", schedule.pk)
    assert Job.objects.count() == 2
