"""A project may read float8 in another way: what the package computes with are floats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from django.db import connection, models
from django.db.backends.postgresql import psycopg_any
from psycopg.adapt import Loader
from psycopg.types.numeric import FloatLoader, NumericLoader

import django_jobs.models
from django_jobs import Backoff, enqueue_many
from django_jobs.doctor.examination import diagnose
from django_jobs.doctor.findings import Diagnosis
from django_jobs.metrics.exposition import render
from django_jobs.metrics.snapshot import take_snapshot
from django_jobs.models import Job, Queue, Resource, Run, Schedule
from django_jobs.testing import run_jobs
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import add, noop
from tests.factories import declared, due_schedule, look, run_sql

pytestmark = pytest.mark.django_db(transaction=True)


class TextLoader(Loader):
    """Gives the text of the server."""

    def load(self, data: Any) -> str:
        return bytes(data).decode()


@pytest.fixture(params=[NumericLoader, TextLoader])
def _others(request: pytest.FixtureRequest) -> Iterator[None]:
    """The project has registered a loader before the first connection."""

    def use(loader: Any) -> None:
        psycopg.adapters.register_loader("float8", loader)
        psycopg_any.get_adapters_template.cache_clear()
        connection.close()
        Queue.objects.forget_recent()

    use(request.param)
    try:
        assert type(run_sql("SELECT 1.5::float8")[0][0]) in (Decimal, str)
        yield
    finally:
        use(FloatLoader)


def fail(first: int) -> None:
    raise OSError(first)


@pytest.mark.usefixtures("_others")
def test_jobs_are_enqueued_and_run() -> None:
    Queue.objects.update(priority_weight=2.5, timeout=30.0)
    Queue.objects.forget_recent()
    Resource.objects.create(name="stripe", rate=10.0, retry_budget=0.5)
    plain = add.using(priority=3).enqueue(1)
    assert type(plain.rank) is float
    add.using(delay=3600, idempotency_key="k").enqueue(2)
    refund_payment.enqueue(1)
    enqueue_many(add, [{"first": 3}], idempotency_keys=["many"])
    with declared(
        fail, name="app.fail_twice", backoff=Backoff.fixed(3600), max_attempts=2
    ) as failing:
        failing.enqueue(4)
        runs = run_jobs()
    assert {run.outcome for run in runs} == {"succeeded", "failed"}
    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded", "scheduled"}
    assert type(Job.objects.all()[0].rank) is float


@pytest.mark.usefixtures("_others")
def test_schedules_fire() -> None:
    schedule = due_schedule(job_type="app.noop", every=3600.0, jitter_seconds=1.0)
    look()
    schedule.refresh_from_db()
    assert schedule.error == ""
    assert Job.objects.get().schedule_id == schedule.pk


@pytest.mark.usefixtures("_others")
def test_all_is_shown() -> None:
    noop.enqueue()
    run_jobs()
    due_schedule()
    assert isinstance(diagnose(), Diagnosis)
    assert not [one for one in diagnose().not_examined if "raised" in one.reason]
    render()
    json.dumps(asdict(take_snapshot()), default=lambda value: value.isoformat())


@pytest.mark.usefixtures("_others")
def test_each_number_of_a_model_is_a_float() -> None:
    Schedule.objects.create(name="s", job_type="app.noop", every=90.0, catch_up_limit=2.0)
    Resource.objects.create(name="r", rate=1.5)
    for model in django_jobs.models.__dict__.values():
        if isinstance(model, type) and issubclass(model, models.Model):
            for field in model._meta.concrete_fields:
                if field.get_internal_type() == "FloatField":
                    assert len(field.get_db_converters(connection)) == 1, field
    assert type(Schedule.objects.get().every) is float
    assert Resource.objects.get().rate == 1.5
    assert list(Run.objects.aggregate(models.Avg("cpu_seconds")).values()) == [None]
