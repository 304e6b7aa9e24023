"""A change of a queue's level is signalled once."""

from __future__ import annotations

import logging

import pytest
from django.db import transaction
from pytest_django import DjangoAssertNumQueries

from django_jobs import Pressure, cancel
from django_jobs.lifecycle.backlog import limited_queues, set_level
from django_jobs.maintenance.tasks import watch_pressure
from django_jobs.models import Job, Queue, Resource
from django_jobs.signals import queue_pressure_changed, resource_pressure_changed, worker_event
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import noop
from tests.factories import heard, in_threads, run_sql

pytestmark = pytest.mark.django_db


@pytest.fixture
def limit() -> int:
    """The queue bulk is full at 5 ready jobs."""
    Queue.objects.filter(name="bulk").update(max_backlog=5)
    return 5


def fill(count: int) -> None:
    noop.using(queue="bulk").enqueue_many([{}] * count)


def test_each_change_of_the_level_is_sent_once(limit: int) -> None:
    with heard(queue_pressure_changed) as sent:
        assert watch_pressure() == 0
        fill(4)
        assert [watch_pressure(), watch_pressure()] == [1, 0]
        fill(1)
        assert [watch_pressure(), watch_pressure()] == [1, 0]
        for job in Job.objects.filter(queue="bulk"):
            cancel(job.pk)
        assert [watch_pressure(), watch_pressure()] == [1, 0]
    changes = [(one["queue"], one["previous"], one["level"]) for one in sent]
    assert changes == [("bulk", "ok", "high"), ("bulk", "high", "full"), ("bulk", "full", "ok")]
    assert [one["sender"] for one in sent] == ["bulk"] * 3
    pressures: list[Pressure] = [one["pressure"] for one in sent]
    assert [(one.level, one.ready) for one in pressures] == [("high", 4), ("full", 5), ("ok", 0)]
    assert all(one.oldest_seconds is not None for one in pressures[:2])
    assert Queue.objects.get(name="bulk").pressure == "ok"


def test_a_change_is_an_event_of_the_log(limit: int) -> None:
    fill(5)
    with heard(worker_event) as events:
        watch_pressure()
    ((event, level, fields),) = [(one["sender"], one["level"], one["fields"]) for one in events]
    assert (event, level) == ("queue_pressure_changed", logging.WARNING)
    assert (fields["queue"], fields["previous"], fields["pressure"]) == ("bulk", "ok", "full")
    Job.objects.all().delete()
    with heard(worker_event) as events:
        watch_pressure()
    assert events[0]["level"] == logging.INFO


def test_a_queue_without_a_limit_is_not_looked_at(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    noop.using(queue="bulk").enqueue_many([{}] * 5)
    with django_assert_num_queries(2):
        assert watch_pressure() == 0
    assert limited_queues() == []


def test_a_queue_whose_limit_was_removed_is_ok_again(limit: int) -> None:
    fill(5)
    watch_pressure()
    Queue.objects.filter(name="bulk").update(max_backlog=None)
    with heard(queue_pressure_changed) as sent:
        assert [watch_pressure(), watch_pressure()] == [1, 0]
    assert [(one["previous"], one["level"]) for one in sent] == [("full", "ok")]


def test_a_receiver_that_raises_stops_no_other_and_no_later_look(limit: int) -> None:
    def fail(**keywords: object) -> None:
        raise RuntimeError("no pager")

    queue_pressure_changed.connect(fail)
    try:
        fill(5)
        with heard(queue_pressure_changed) as sent:
            assert [watch_pressure(), watch_pressure()] == [1, 0]
    finally:
        queue_pressure_changed.disconnect(fail)
    assert len(sent) == 1


def test_each_change_of_the_level_of_a_resource_is_sent_once() -> None:
    resource = Resource.objects.create(name="stripe", max_waiting=5)
    with heard(resource_pressure_changed) as sent, heard(worker_event) as events:
        for count in (0, 4, 1):
            refund_payment.enqueue_many([{"payment_id": 1}] * count)
            assert [watch_pressure(), watch_pressure()] == [bool(count), 0]
        Resource.objects.update(max_waiting=None)
        assert [watch_pressure(), watch_pressure()] == [1, 0]
    changes = [(one["previous"], one["level"]) for one in sent]
    assert changes == [("ok", "high"), ("high", "full"), ("full", "ok")]
    assert {(one["sender"], one["resource"]) for one in sent} == {("stripe", "stripe")}
    assert [(one["pressure"].level, one["pressure"].gated) for one in sent[:2]] == [
        ("high", 4),
        ("full", 5),
    ]
    assert {one["sender"] for one in events} == {"resource_pressure_changed"}
    assert [one["fields"]["gated"] for one in events] == [4, 5, 5]
    resource.refresh_from_db()
    assert resource.pressure == "ok"


@pytest.mark.django_db(transaction=True)
def test_of_eight_workers_that_look_at_once_one_sends(limit: int) -> None:
    fill(5)
    with heard(queue_pressure_changed) as sent:
        changed = in_threads(8, lambda number: watch_pressure())
        watch_pressure()
    assert sum(changed) <= 1
    assert [(one["queue"], one["level"]) for one in sent] == [("bulk", "full")]


@pytest.mark.django_db(transaction=True)
def test_a_locked_queue_is_left_to_the_next_look(limit: int) -> None:
    fill(5)
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_queue WHERE name = 'bulk' FOR UPDATE")
        assert in_threads(1, lambda number: watch_pressure()) == [0]
    assert watch_pressure() == 1


def test_a_level_that_another_worker_has_changed_is_not_overwritten(limit: int) -> None:
    assert set_level("queue", "bulk", "ok", "full")
    assert not set_level("queue", "bulk", "ok", "high")
    assert Queue.objects.get(name="bulk").pressure == "full"
