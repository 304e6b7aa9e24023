"""The statements of each list: as many for many rows as for few, with counts that have a limit, and
without columns that are large."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Now

from django_jobs.api.schedules import request_of
from django_jobs.lifecycle.operations import quarantines
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.metrics import stored
from django_jobs.models import (
    Backfill,
    DeadLetter,
    Job,
    Overview,
    Quarantine,
    Queue,
    Resource,
    Run,
    Schedule,
    Tenant,
    Tick,
    Worker,
    WorkflowRun,
)
from tests.app.gate_jobs import bill_tenant, refund_payment
from tests.app.jobs import add
from tests.factories import make_dead, register_worker

from .schedules.scheduling import new_schedule
from .walking import Page, list_url, statements_of
from .workflows.graphs import order

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_time_limit")]


def ended(number: int) -> None:
    make_dead(add, number, worker=register_worker(f"w{number}"))


def scheduled(number: int) -> None:
    schedule = new_schedule(name=f"s{number}")
    schedule_operations.run_now([schedule.pk], request_of)
    Backfill.objects.create(schedule=schedule, begins_at=Now(), ends_at=Now())


def limited(number: int) -> None:
    Resource.objects.create(name=f"z{number}" if number else "stripe")
    refund_payment.enqueue(number)


def billed(number: int) -> None:
    Tenant.objects.create(name=f"t{number}")
    bill_tenant.enqueue(f"t{number}")


LISTS: dict[Any, tuple[Callable[[int], object], int]] = {
    **dict.fromkeys((Job, DeadLetter, Run, Queue, Worker), (ended, 7)),
    **dict.fromkeys((Schedule, Tick, Backfill), (scheduled, 9)),
    Resource: (limited, 7),
    Tenant: (billed, 7),
    Quarantine: (lambda number: quarantines.quarantine(f"app.gone_{number}"), 7),
    WorkflowRun: (lambda number: order(), 9),
}
"""What makes a row and what belongs to it, and how many statements are enough."""
LARGE = re.compile(r'"(?:payload|compensations|graph)"(?! \? \'fields\'| IS NOT NULL)')


@pytest.mark.parametrize("model", LISTS)
def test_a_list_takes_the_same_statements_for_few_rows_and_for_many(
    page: Page, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "FRESH_SECONDS", 600.0)  # the numbers that all consoles share
    page.text(list_url(Overview))
    make, most = LISTS[model]
    make(0)
    page.text(list_url(model))
    few = statements_of(page, list_url(model))
    for number in range(1, 12):
        make(number)
    many = statements_of(page, list_url(model))
    assert len(few) == len(many) <= most, many
    for sql in many:
        assert sql.upper().count("COUNT(") <= sql.upper().count("LIMIT"), sql
        assert model in (Job, DeadLetter) or not LARGE.search(sql), sql
