"""The objective of a queue on its page."""

from __future__ import annotations

import pytest

from django_jobs.models import Queue
from tests.admin.walking import Page, change_url
from tests.factories import run_sql
from tests.metrics.test_slo import run_with_waits

pytestmark = pytest.mark.django_db


def test_a_queue_shows_how_many_of_its_jobs_started_in_time(page: Page) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=30)
    run_with_waits(1, 1, 1, 60)
    run_sql("UPDATE django_jobs_runtotal SET slo_met = 4 WHERE period = 3600")
    text = page.text(change_url(Queue, Queue.objects.get(name="default").pk))
    assert "75.00% of 4 jobs in time, burn rate 25.0" in text
    assert "100.00% of 4 jobs in time, burn rate 0.0" in text


def test_a_queue_without_an_objective_shows_none(page: Page) -> None:
    run_with_waits(60)
    assert "in time, burn rate" not in page.text(
        change_url(Queue, Queue.objects.get(name="default").pk)
    )
