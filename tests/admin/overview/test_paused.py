"""The page with all that is paused, and until when an operator pauses something."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db.models import Model
from django.urls import reverse

from django_jobs import pause, resume
from django_jobs.models import Quarantine, Queue, Resource, Schedule, Tenant
from tests.admin.schedules.scheduling import new_schedule
from tests.admin.walking import Live, Page, change_url, list_url, statements_of
from tests.app.jobs import add
from tests.factories import run_sql

from .looking import table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_time_limit")]

NAMES = {
    "queue": (Queue, "default"),
    "schedule": (Schedule, "nightly"),
    "resource": (Resource, "stripe"),
    "tenant": (Tenant, "acme"),
    "job_type": (Quarantine, add.name),
}


@pytest.fixture(autouse=True)
def _rows() -> None:
    new_schedule(name="nightly")
    Resource.objects.create(name="stripe")
    Tenant.objects.create(name="acme")


def url() -> str:
    return reverse("admin:django_jobs_overview_paused")


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells behind each name."""
    return {name: list(row.values())[1:] for name, row in table(text, "All that is paused").items()}


def test_it_lists_each_kind_with_by_whom_until_when_and_why(page: Page) -> None:
    assert "Nothing is paused." in page.text(url())
    until = datetime(2099, 3, 1, 14, 5, 9, tzinfo=UTC)
    for kind, (_, name) in NAMES.items():
        pause(kind, name, by="<i>olga", reason="<b>down", until=until)
    text = page.text(url())
    assert Live(text).alarms == []
    rows = rows_of(text)
    assert list(rows) == ["app.add", "acme", "stripe", "nightly", "default"]  # newest first
    for model, name in NAMES.values():
        pk = model._default_manager.get(**{"job_type" if model is Quarantine else "name": name}).pk
        assert change_url(model, pk) in text
        what, since, end, by, reason = rows[name]
        assert what.lower() == model._meta.verbose_name
        assert since.endswith("ago")
        assert "Mar 1, 2099, 14:05:09" in end
        assert by == "<i>olga"
        assert reason == "<b>down"
    for kind, (_, name) in NAMES.items():
        resume(kind, name)
    assert "Nothing is paused." in page.text(url())
    assert url() in page.text(reverse("admin:django_jobs_overview_changelist"))


def test_it_shows_what_its_user_may_see(page_of: Callable[..., Page]) -> None:
    for kind, (_, name) in NAMES.items():
        pause(kind, name)
    assert list(rows_of(page_of("view_queue").text(url()))) == ["default"]
    both = page_of("view_queue", "view_tenant", name="rita").text(url())
    assert list(rows_of(both)) == ["acme", "default"]
    page_of("view_tenant", name="tom").text(url(), status=403)


def test_its_statements_do_not_grow_with_what_is_paused(page: Page) -> None:
    pause("tenant", "acme")
    one = statements_of(page, url())
    for number in range(30):
        pause("tenant", f"tenant-{number}")
    assert len(statements_of(page, url())) == len(one) <= 7


def test_a_pause_by_hand_since_for_ever_is_shown(page: Page) -> None:
    run_sql("UPDATE django_jobs_queue SET paused_at = '-infinity', paused_until = 'infinity'")
    assert "infinity" in page.text(url())


def pause_by_form(page: Page, model: type[Model], name: str, day: str, time: str) -> Any:
    fields = {"reason": "moving", "until_0": day, "until_1": time}
    if model is Quarantine:
        return page.client.post(f"{list_url(model)}add/", {"job_type": name, **fields})
    pk = model._default_manager.get(name=name).pk
    action = f"pause_{model._meta.model_name}s"
    assert 'name="until_0"' in page.ask(model, action, pk).content.decode()
    return page.confirm(model, action, pk, **fields)


@pytest.mark.parametrize("kind", NAMES)
def test_an_operator_pauses_until_a_time_in_the_zone_of_the_site(
    page: Page, settings: Any, kind: str
) -> None:
    settings.TIME_ZONE = "America/New_York"
    model, name = NAMES[kind]
    refused = pause_by_form(page, model, name, "2020-03-01", "12:00")
    assert refused.status_code == 200
    assert "Enter a time that has not passed." in refused.content.decode()
    assert "Nothing is paused." in page.text(url())
    assert pause_by_form(page, model, name, "2090-01-15", "12:00").status_code == 302
    _, _, end, _, reason = rows_of(page.text(url()))[name]
    assert (end, reason) == ("Jan 15, 2090, 12:00:00 EST", "moving")
    row = model._default_manager.get(**{"job_type" if model is Quarantine else "name": name})
    stored = row.until if model is Quarantine else row.paused_until
    assert stored.isoformat() == "2090-01-15T17:00:00+00:00"


def test_the_history_says_until_when(page: Page) -> None:
    queue = Queue.objects.get(name="default")
    pause_by_form(page, Queue, "default", "2090-01-15", "12:00")
    history = page.read(reverse("admin:django_jobs_queue_history", args=[queue.pk]))
    assert "paused: moving: until 2090-01-15 12:00:00 UTC" in history
