"""Times that stand alone say in which time zone they are. Refusals are in the reader's language."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.test import override_settings
from django.utils import timezone, translation

from django_jobs.admin.base.formatting import (
    due_text,
    moment,
    moment_and_age,
    moment_in_zone,
    refusal_text,
)
from django_jobs.domain.states import JobState
from django_jobs.domain.workflows import WorkflowState
from django_jobs.models import Job
from django_jobs.models.worker import WorkerStatus
from tests.admin.overview.looking import overview, words
from tests.admin.walking import Page, change_url
from tests.app.jobs import noop

AT = datetime(2026, 11, 23, 13, 5, 9, tzinfo=UTC)


@pytest.fixture
def this_year(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each zone, the year of ``AT`` is that of now."""
    monkeypatch.setattr(timezone, "now", lambda: AT)


@pytest.mark.usefixtures("this_year")
@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("UTC", "Nov 23, 13:05:09\xa0UTC<"),
        ("Europe/Berlin", "Nov 23, 14:05:09\xa0CET<"),
        ("America/Sao_Paulo", "Nov 23, 10:05:09\xa0-03<"),
    ],
)
def test_a_time_that_stands_alone_has_its_zone(zone: str, text: str) -> None:
    with timezone.override(zone):
        assert text in moment_in_zone(AT)
        assert f"{text}/time> (" in moment_and_age(AT, AT + timedelta(seconds=3))


@pytest.mark.usefixtures("this_year")
def test_the_zone_follows_the_time_in_other_languages() -> None:
    with timezone.override("Europe/Berlin"), translation.override("de"):
        assert "23. Nov, 14:05:09\xa0CET<" in moment_in_zone(AT)


def test_the_year_is_named_if_it_is_another() -> None:
    at, zone = AT.replace(year=2001), ZoneInfo("Asia/Tokyo")
    assert ">Nov 23, 2001, 22:05:09\xa0JST<" in moment_in_zone(at, zone)
    assert due_text(at.replace(microsecond=500_000), zone) == "Fri, Nov 23, 2001, 22:05:09.5 JST"
    with translation.override("de"):
        assert ">23. Nov 2001, 13:05:09<" in moment(at)


@pytest.mark.django_db
@override_settings(TIME_ZONE="Asia/Tokyo")
def test_the_overview_and_the_page_of_a_job_say_the_zone(page: Page) -> None:
    for text in (overview(page), page.text(change_url(Job, noop.enqueue().pk))):
        assert " JST " in words(text.replace("\xa0", " "))


@pytest.mark.parametrize("state", sorted({*JobState, *WorkflowState, *WorkerStatus}))
def test_a_refusal_because_of_a_state_is_translated(state: str) -> None:
    with translation.override("de"):
        assert refusal_text(f"it is {state}").startswith("er ")
