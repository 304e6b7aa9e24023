"""Locks and isolation levels of others (D10, D11, D17)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from django_jobs.models import Job, Resource, Run, Worker
from tests.app import database_jobs, jobs
from tests.app.gate_jobs import charge_account, post_to_ledger, refund_payment
from tests.app.models import Effect
from tests.factories import open_elsewhere
from tests.worker.processes import Start, until, until_status

from .stage import settings_module

pytestmark = pytest.mark.processes


def test_of_two_handlers_that_deadlock_one_is_retried_soon_and_both_succeed(
    start_worker: Start, tmp_path: Path
) -> None:
    a, b = (Effect.objects.create(note=note).pk for note in "ab")
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    crossed = [
        database_jobs.lock_crosswise.enqueue(a, b, one, other),
        database_jobs.lock_crosswise.enqueue(b, a, other, one),
    ]
    start_worker("--threads", "2")
    ended = [until_status(job, "succeeded") for job in crossed]
    assert sorted(job.failures for job in ended) == [0, 1]
    run = Run.objects.get(outcome="failed")
    assert "deadlock detected" in run.error_message
    assert run.error_code == "40P01"
    until_status(jobs.noop.enqueue(), "succeeded")
    assert Worker.objects.count() == 1


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_every_job_runs_once_at_any_isolation_level(
    start_worker: Start, tmp_path: Path, level: str
) -> None:
    environment = settings_module(
        tmp_path,
        "isolated_settings",
        "from psycopg import IsolationLevel\n"
        "DATABASES['default'] |= {'OPTIONS': {**DATABASES['default'].get('OPTIONS', {}),"
        f" 'isolation_level': IsolationLevel.{level}}}}}",
    )
    with_effects = jobs_with_effects()
    workers = [start_worker("--threads", "4", **environment) for _ in range(2)]
    until(
        lambda: Job.objects.filter(status="succeeded").count() == with_effects, what="all succeeded"
    )
    isolation = until_status(database_jobs.tell_isolation.enqueue(), "succeeded").result
    assert isolation == level.replace("_", " ").lower()
    assert Effect.objects.filter(note="plain").count() == 300
    assert Effect.objects.filter(note="once").count() == 50
    assert Run.objects.filter(outcome="succeeded").count() == with_effects + 1
    assert not any("database_error" in worker.text() for worker in workers)


def jobs_with_effects() -> int:
    jobs.write_effect.enqueue_many({"note": "plain"} for _ in range(300))
    database_jobs.write_once.enqueue_many({} for _ in range(50))
    jobs.write_effect.using(queue="emails").enqueue_many({"note": "limited"} for _ in range(20))
    return 370


LIMITS: list[dict[str, Any]] = [{"rate": 1000.0}, {"retry_budget": 0.5}]


@pytest.mark.parametrize("limit", LIMITS, ids=["rate", "retry_budget"])
def test_a_locked_resource_delays_only_the_jobs_that_use_it(
    start_worker: Start, tmp_path: Path, limit: dict[str, Any]
) -> None:
    resource = Resource.objects.create(name="stripe", **limit)
    Resource.objects.create(name="ledger", **limit)
    worker = start_worker("--poll-seconds", "0.2")
    until_status(jobs.noop.enqueue(), "succeeded")
    with open_elsewhere(
        "SELECT 1 FROM django_jobs_resource WHERE id = %s FOR UPDATE", [resource.pk]
    ):
        held = refund_payment.enqueue(1)
        until(lambda: "event=admission_blocked" in worker.text())
        for number in range(3):
            until_status(jobs.noop.enqueue(), "succeeded")
            until_status(charge_account.enqueue(number), "succeeded")
            until_status(post_to_ledger.enqueue(str(tmp_path)), "succeeded")
        assert Job.objects.get(pk=held.pk).status == "blocked"
    assert until_status(held, "succeeded").attempt == 1
    assert "event=claim_blocked" not in worker.text()
