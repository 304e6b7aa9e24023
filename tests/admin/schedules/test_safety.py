"""What the console must never do with schedules: edit the code's, run markup, ask no permission."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape

from django_jobs.api.schedules import request_of
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import Backfill, Job, Schedule, Tick
from tests.admin.schedules.scheduling import (
    EVIL,
    add_url,
    backfill_url,
    filled_in,
    in_code,
    new_schedule,
    schedulable,
)
from tests.admin.walking import BROKEN_PAYLOADS, Live, Page, change_url, list_url
from tests.factories import declared, run_sql

pytestmark = pytest.mark.django_db
MODELS = (Schedule, Tick, Backfill)


def test_a_declared_schedule_is_read_only_but_can_be_paused(page: Page) -> None:
    with in_code("theirs") as schedule:
        url = change_url(Schedule, schedule.pk)
        text = page.read(url)
        assert "This schedule is declared in code and can be changed only there." in text
        assert 'name="cron"' not in text
        assert page.client.post(url, filled_in()).status_code == 403
        delete = reverse("admin:django_jobs_schedule_delete", args=[schedule.pk])
        assert page.client.post(delete, {"post": "yes"}).status_code == 403
        page.act(Schedule, "pause_schedules", schedule.pk, reason="enough")
    schedule.refresh_from_db()
    assert (schedule.paused_reason, schedule.every) == ("enough", 3600.0)


def test_a_formerly_declared_schedule_is_read_only_and_can_be_deleted(page: Page) -> None:
    schedule = new_schedule(declared=True)
    assert "no longer declares it" in page.read(change_url(Schedule, schedule.pk))
    assert page.client.post(change_url(Schedule, schedule.pk), filled_in()).status_code == 403
    delete = reverse("admin:django_jobs_schedule_delete", args=[schedule.pk])
    assert page.client.post(delete, {"post": "yes"}).status_code == 302
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("job_type", ["app.noop", "app.gone"])
def test_a_schedule_of_another_job_type_cannot_be_edited(page: Page, job_type: str) -> None:
    schedule = new_schedule(job_type=job_type)
    assert "Read-only: " in page.read(change_url(Schedule, schedule.pk))
    assert page.client.post(change_url(Schedule, schedule.pk), filled_in()).status_code == 403


def test_a_payload_that_cannot_be_read_breaks_neither_list_nor_page(page: Page) -> None:
    broken = BROKEN_PAYLOADS["a number that Python refuses"]
    with schedulable():
        schedule = new_schedule(job_type="app.count_up", payload={"step": 1})
        run_sql("UPDATE django_jobs_schedule SET payload = %s::jsonb", [broken])
        page.text(list_url(Schedule))
        text = page.read(change_url(Schedule, schedule.pk))
        assert "its payload cannot be read" in text
        assert "cannot be shown" in text
        page.text(add_url("app.count_up", copy=schedule.pk))


def test_deletion_counts_up_to_a_limit_and_deletes_ticks(page: Page) -> None:
    schedule = new_schedule()
    schedule_operations.run_now([schedule.pk], request_of)
    schedule_operations.run_now([schedule.pk], request_of)
    url = reverse("admin:django_jobs_schedule_delete", args=[schedule.pk])
    assert "Ticks: 2" in page.read(url)
    with CaptureQueriesContext(connection) as captured:
        assert page.client.post(url, {"post": "yes"}).status_code == 302
    assert not Tick.objects.exists()
    assert Job.objects.count() == 2
    assert not [query for query in captured if '"django_jobs_tick"."reason"' in query["sql"]]


def test_many_are_not_deleted_at_once(page: Page) -> None:
    schedule = new_schedule()
    assert 'value="delete_selected"' not in page.text(list_url(Schedule))
    page.confirm(Schedule, "delete_selected", schedule.pk, post="yes")
    assert Schedule.objects.exists()


def test_markup_in_rows_is_shown_and_not_run(page: Page) -> None:
    with schedulable():
        schedule = new_schedule(
            name=EVIL, job_type="app.collect", payload={"where": EVIL, EVIL: EVIL}
        )
        schedule_operations.run_now([schedule.pk], request_of)
        schedule_operations.pause([schedule.pk], reason=EVIL)
        run_sql("UPDATE django_jobs_tick SET reason = %s", [EVIL])
        other = new_schedule(name="other", job_type=EVIL[:90])
        run_sql("UPDATE django_jobs_schedule SET error = %s, cron = %s, every = NULL WHERE id = %s",
                [EVIL, EVIL, other.pk])  # fmt: skip
        backfill = Backfill.objects.create(
            schedule=schedule, begins_at="2026-01-01T00:00Z", ends_at="2026-01-02T00:00Z",
            requested_by=EVIL,
        )  # fmt: skip
        texts = [page.text(list_url(model)) for model in MODELS]
        texts += [page.text(change_url(Schedule, pk)) for pk in (schedule.pk, other.pk)]
        texts += [page.text(change_url(Tick, Tick.objects.get().pk))]
        texts += [page.text(change_url(Backfill, backfill.pk)), page.text(backfill_url(schedule))]
        texts += [page.text(add_url("app.collect", copy=schedule.pk)), page.text(add_url(EVIL))]
        texts += [page.text(reverse("admin:django_jobs_schedule_delete", args=[schedule.pk]))]
        texts += [page.ask(Schedule, "run_schedules_now", schedule.pk).content.decode()]
    for text in texts:
        assert Live(text).alarms == []
        assert "<script>alert" not in text


def test_the_default_of_a_handler_is_text_and_no_markup(page: Page) -> None:
    def mail(tag: str = EVIL) -> None: ...

    with declared(mail, schedulable=True) as job_type:
        enqueue = f"{reverse('admin:django_jobs_job_enqueue')}?job_type={job_type.name}"
        for text in (page.text(add_url(job_type.name)), page.text(enqueue)):
            assert Live(text).alarms == []
            assert f"Empty: {escape(EVIL)}." in text  # and is escaped once


def test_the_view_permission_shows_no_button_and_allows_no_change(
    page_of: Callable[..., Page],
) -> None:
    page = page_of("view_schedule")
    with schedulable():
        schedule = new_schedule(job_type="app.report", payload={"customer": 987654})
        Backfill.objects.create(
            schedule=schedule, begins_at="2026-01-01T00:00Z", ends_at="2026-01-02T00:00Z"
        )
        for model in MODELS:
            assert 'name="action"' not in page.text(list_url(model))
            for row in model.objects.all():
                assert 'name="action"' not in page.text(change_url(model, row.pk))
        text = page.read(change_url(Schedule, schedule.pk))
        for word in ('name="cron"', "987654", "/backfill/", "copy=", 'name="_save"', "Delete"):
            assert word not in text.replace(list_url(Backfill), ""), word
        delete = reverse("admin:django_jobs_schedule_delete", args=[schedule.pk])
        for url in (add_url(), change_url(Schedule, schedule.pk), delete, backfill_url(schedule)):
            assert page.client.post(url, filled_in(post="yes")).status_code == 403
        for url in (add_url(), delete, backfill_url(schedule)):
            assert page.client.get(url).status_code == 403
    schedule.refresh_from_db()
    assert schedule.name == "hourly"


def test_a_user_without_permissions_sees_nothing(page_of: Callable[..., Page]) -> None:
    schedule = new_schedule()
    schedule_operations.run_now([schedule.pk], request_of)
    page = page_of("view_job", "pause_schedule", "run_schedule", "backfill_schedule")
    for model in MODELS:
        page.text(list_url(model), status=403)
    page.text(change_url(Schedule, schedule.pk), status=403)
    page.text(backfill_url(schedule), status=403)
    page.text(reverse("admin:django_jobs_schedule_preview"), status=403)
