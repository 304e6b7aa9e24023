"""Times that come twice when clocks go back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from django_jobs.admin.forms.fields import MomentField
from django_jobs.models import Schedule
from tests.admin.schedules.scheduling import new_schedule, schedulable
from tests.admin.walking import Page, change_url

from .test_edit_form import opened


@pytest.fixture(autouse=True)
def _in_berlin(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"


def test_the_first_of_the_two_is_meant_and_a_time_that_never_comes_is_refused() -> None:
    first = datetime(2031, 10, 26, 0, 45, tzinfo=UTC)
    assert MomentField().clean(["2031-10-26", "02:45:00"]) == first
    assert MomentField().clean(["2031-10-26", "03:45:00"]) == first.replace(hour=2)
    with pytest.raises(ValidationError, match="in time zone Europe/Berlin"):
        MomentField().clean(["2031-03-30", "02:45:00"])


@pytest.mark.django_db
def test_a_schedule_that_starts_in_the_second_of_the_two_stays_so(page: Page) -> None:
    second = datetime(2031, 10, 26, 1, 30, tzinfo=UTC)
    with schedulable():
        schedule = new_schedule(job_type="app.report", payload={"customer": 1}, starts_at=second)
        sent = opened(page, schedule) | {"priority": "9"}
        sent |= {"starts_at_0": "2031-10-26", "starts_at_1": "02:30:00"}
        saved = page.client.post(change_url(Schedule, schedule.pk), sent)
        assert saved.status_code == 302, saved.context["adminform"].form.errors
    schedule.refresh_from_db()
    assert (schedule.priority, schedule.starts_at) == (9, second)
