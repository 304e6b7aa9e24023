"""What a worker could do next, seen in one statement."""

from __future__ import annotations

import pytest

from django_jobs.lifecycle.promoting import peek
from django_jobs.models import Queue
from tests.app.jobs import noop
from tests.factories import claim_ready, register_worker, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db


def test_it_returns_which_queues_have_ready_jobs_and_which_a_limit() -> None:
    noop.enqueue()
    noop.using(queue="bulk").enqueue()
    seen = peek(["default", "emails", "nowhere"])
    assert seen.ready == {"default"}
    assert seen.limited == {"emails"}
    claim_ready(register_worker())
    assert peek(["default"]).ready == frozenset()


def test_it_returns_all_queues_if_requested_and_changed() -> None:
    names = list(Queue.objects.order_by("name").values_list("name", flat=True))
    assert peek(names, every=True).queues is None
    Queue.objects.create(name="later")
    assert peek(names).queues is None
    assert peek(names, every=True).queues == sorted([*names, "later"])


def test_it_returns_when_the_next_scheduled_job_is_due() -> None:
    assert peek(["default"]).next_due_in is None
    noop.using(delay=200).enqueue()
    job = noop.using(delay=100, queue="bulk").enqueue()
    with moment() as now:
        next_due_in = peek(["default"]).next_due_in
    assert next_due_in in now.until(job.available_at)


def test_it_returns_when_the_next_wait_for_a_signal_is_over() -> None:
    job = noop.using(delay=100).enqueue()
    run_sql("UPDATE django_jobs_job SET status = 'waiting'")
    assert peek(["default"]).next_due_in is None, "it waits for another job"
    run_sql("UPDATE django_jobs_job SET awaits = 'approval'")
    noop.using(delay=500).enqueue()
    with moment() as now:
        next_due_in = peek(["default"]).next_due_in
    assert next_due_in in now.until(job.available_at)
