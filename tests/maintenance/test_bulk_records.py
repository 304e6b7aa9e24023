"""The log says when an operation begins and how it ends."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_jobs.domain.replay_plan import ReplayPlan
from django_jobs.lifecycle.operations import bulk
from django_jobs.maintenance import bulk_operations
from django_jobs.models import BulkOperation
from django_jobs.signals import worker_event
from tests.app.jobs import noop
from tests.factories import copies_of, heard, make_dead, make_user, run_sql
from tests.maintenance.test_bulk_operations import run_all
from tests.moments import moment

pytestmark = pytest.mark.django_db

Logged = list[tuple[str, int, dict[str, Any]]]


def logged_until_the_end() -> Logged:
    with heard(worker_event) as events:
        run_all()
    for event in events:
        event["fields"].pop("seconds", None)
    return [(event["sender"], event["level"], event["fields"]) for event in events]


def test_an_operation_that_completes_is_logged_at_its_begin_and_its_end() -> None:
    noop.enqueue_many({} for _ in range(3))
    olga = make_user("cancel_job", name="olga")
    asked = bulk.start("cancel", {"queue": "default"}, actor=olga, reason="sent twice")
    of = {"operation": asked.pk, "action": "cancel", "by": "olga"}
    assert logged_until_the_end() == [
        ("operation_started", logging.INFO, of | {"matched": 3, "reason": "sent twice"}),
        ("operation_completed", logging.INFO, of | {"done": 3, "left": 0, "reason": ""}),
    ]


def test_how_long_an_operation_took_is_in_the_event_of_its_end() -> None:
    bulk.start("cancel", {"queue": "default"})
    with heard(worker_event) as events:
        run_all()
    operation = BulkOperation.objects.get()
    assert operation.started_at is not None
    assert operation.finished_at is not None
    took = (operation.finished_at - operation.started_at).total_seconds()
    assert events[-1]["fields"]["seconds"] == took


def test_the_event_of_the_end_leaves_out_the_time_for_which_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_operations, "CHUNK", 2)
    noop.enqueue_many({} for _ in range(5))
    asked = bulk.start("cancel", {"queue": "default"})
    bulk_operations.run_chunk()
    bulk.stop([asked.pk])
    run_all(1)
    with moment() as here:
        run_sql(
            "UPDATE django_jobs_bulkoperation SET started_at = now() - interval '61 min',"
            " finished_at = now() - interval '60 min'"
        )
        bulk.resume([asked.pk])
        with heard(worker_event) as events:
            run_all()
    assert events[-1]["sender"] == "operation_completed"
    assert abs(events[-1]["fields"]["seconds"] - 60) <= here.length.total_seconds()


def test_an_operation_that_is_stopped_and_resumed_is_logged_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_operations, "CHUNK", 2)
    noop.enqueue_many({} for _ in range(5))
    asked = bulk.start("cancel", {"queue": "default"})
    bulk_operations.run_chunk()
    bulk.stop([asked.pk], by="ada")
    ((event, level, fields),) = logged_until_the_end()
    assert (event, level) == ("operation_stopped", logging.WARNING)
    assert (fields["done"], fields["reason"]) == (2, "stopped by ada")
    bulk.resume([asked.pk], by="bob")
    first, last = logged_until_the_end()
    assert (first[0], last[0]) == ("operation_started", "operation_completed")
    assert (last[2]["by"], last[2]["done"]) == ("bob", 5)


def test_an_operation_that_is_stopped_before_it_begins_has_an_end_alone() -> None:
    asked = bulk.start("cancel", {"queue": "default"})
    bulk.stop([asked.pk], by="ada")
    assert [event for event, *_ in logged_until_the_end()] == ["operation_stopped"]


def test_a_plan_logs_how_the_replayed_jobs_went() -> None:
    copies_of(make_dead(), 2, status="dead")
    bulk.start("replay", {"status": "dead"}, plan=ReplayPlan(first=1, then=0, rate=1))
    bulk_operations.run_chunk()
    bulk.stop([BulkOperation.objects.get().pk])
    ((_, _, fields),) = logged_until_the_end()
    assert (fields["done"], fields["succeeded"], fields["failed"]) == (1, 0, 0)


@pytest.mark.parametrize("error", [True, False])
def test_an_operation_that_fails_is_logged_with_its_reason(error: bool) -> None:
    olga = make_user("cancel_job", name="olga")
    asked = bulk.start("cancel", {"queue": "default"}, actor=olga)
    if error:
        BulkOperation.objects.filter(pk=asked.pk).update(action="vanish")
    else:
        olga.user_permissions.clear()
    ((event, level, fields),) = logged_until_the_end()
    assert (event, level) == ("operation_failed", logging.ERROR)
    problem = "'vanish'" if error else "olga lacks the permission django_jobs.cancel_job"
    assert problem in fields["reason"]


@pytest.mark.django_db(transaction=True)
def test_a_chunk_that_is_rolled_back_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: Any) -> None:
        raise KeyboardInterrupt

    bulk.start("cancel", {"queue": "default"})
    monkeypatch.setattr(bulk, "store", fail)
    with heard(worker_event) as events, pytest.raises(KeyboardInterrupt):
        bulk_operations.run_chunk()
    assert not events
