"""A retry may go to another queue, with another priority."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.domain.admission import FairShares
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.gates import Gates
from django_jobs.domain.numbers import STRICT_WEIGHT
from django_jobs.domain.outcomes import Failed, Lost, Snoozed, Succeeded
from django_jobs.lifecycle import settling
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import PLAIN_SUCCESS, Ending, parameters, settle
from django_jobs.lifecycle.settling_rows import settle_row_by_row
from django_jobs.models import Job, Queue, Run
from tests.app.gate_jobs import charge_account
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    declared,
    enqueue_and_claim,
    failure,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db


def retry(**options: Any) -> Failed:
    return Failed(error=ErrorReport.plain("Retry", "busy"), retry_after=100, **options)


def settled(held: ClaimedJob, **options: Any) -> Job:
    settle_one(held, retry(**options))
    return Job.objects.get(pk=held.id)


def due(job: Job) -> float:
    return job.available_at.timestamp()


def test_a_retry_goes_to_another_queue_with_the_rank_that_it_has_there() -> None:
    job = settled(enqueue_and_claim(priority=2), queue="strict")
    assert (job.queue, job.priority, job.status) == ("strict", 2, "scheduled")
    assert job.rank == pytest.approx(due(job) - 2 * STRICT_WEIGHT, abs=1e-3)
    assert Run.objects.get().error_message == "busy"


def test_a_retry_gets_another_priority_in_its_queue() -> None:
    job = settled(enqueue_and_claim(priority=2), priority=-7)
    assert (job.queue, job.priority) == ("default", -7)
    assert job.rank == pytest.approx(due(job) + 7 * 60, abs=1e-3)


def test_a_retry_gets_both() -> None:
    Queue.objects.filter(name="bulk").update(priority_weight=5)
    Queue.objects.forget_recent()
    job = settled(enqueue_and_claim(), queue="bulk", priority=10)
    assert (job.queue, job.priority) == ("bulk", 10)
    assert job.rank == pytest.approx(due(job) - 10 * 5, abs=1e-3)


def test_a_job_runs_again_in_the_queue_of_its_retry() -> None:
    held = enqueue_and_claim(idempotency_key="k")
    assert settled(held, queue="bulk").idempotency_key == "k"
    job_operations.run_now([held.id])
    assert claim_ready(held.worker) == []
    (again,) = claim_ready(held.worker, "bulk")
    assert (again.id, again.attempt, again.queue) == (held.id, 2, "bulk")
    assert settled(again, queue="bulk").queue == "bulk"
    assert noop.using(queue="bulk", idempotency_key="k").enqueue().pk == held.id


def test_a_key_goes_along_and_one_that_is_unique_for_a_time_stays_taken_too() -> None:
    plain = enqueue_and_claim(idempotency_key="plain")
    timed = enqueue_and_claim(idempotency_key="timed", unique_for=3600)
    for held in (plain, timed):
        settled(held, queue="bulk")
    assert noop.using(idempotency_key="plain").enqueue().pk not in (plain.id, timed.id)
    for queue in ("default", "bulk"):
        again = noop.using(idempotency_key="timed", unique_for=3600, queue=queue).enqueue()
        assert again.pk == timed.id


@pytest.mark.parametrize("name", ["nope", "", "a b", "a\x00b", "\udcff", "x" * 10_000])
def test_a_retry_for_an_unknown_queue_stays_in_its_own_and_says_so(name: str) -> None:
    job = settled(enqueue_and_claim(), queue=name, priority=3)
    assert (job.queue, job.priority, job.status, job.failures) == ("default", 3, "scheduled", 1)
    message = Run.objects.get().error_message
    assert message.startswith("busy (not moved to the queue '")
    assert message.endswith("': there is no such queue)")


def test_a_retry_stays_in_its_queue_if_its_key_is_held_in_the_other() -> None:
    held = enqueue_and_claim(idempotency_key="k")
    holder = noop.using(queue="bulk", idempotency_key="k").enqueue()
    job = settled(held, queue="bulk", priority=3)
    assert (job.queue, job.priority, job.status) == ("default", 3, "scheduled")
    assert job.last_error.endswith(
        f"busy (not moved to the queue 'bulk': job {holder.pk} holds its idempotency key there)"
    )


def test_of_two_retries_with_one_key_the_first_goes_and_the_other_stays() -> None:
    """Neither sees the other before the write, which PostgreSQL refuses."""
    held = [enqueue_and_claim(idempotency_key="k", queue=name) for name in ("default", "strict")]
    plain = enqueue_and_claim()
    endings = [Ending(job, retry(queue="bulk")) for job in held]
    done = settle_row_by_row([*endings, Ending(plain, Succeeded())])
    assert all(one.decision for one in done)
    first, second = (Job.objects.get(pk=job.id) for job in held)
    assert (first.queue, first.status) == ("bulk", "scheduled")
    assert (second.queue, second.status) == ("strict", "scheduled")
    assert f"job {first.pk} holds its idempotency key there" in second.last_error
    assert Job.objects.get(pk=plain.id).status == "succeeded"


def test_a_key_taken_after_the_look_leaves_the_retry_in_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = enqueue_and_claim(idempotency_key="k")
    noop.using(queue="bulk", idempotency_key="k").enqueue()
    look = settling.admitted
    monkeypatch.setattr(
        settling,
        "admitted",
        lambda decision, job, stays: look(decision, job, stays) if stays else decision,
    )
    (done,) = settle_row_by_row([Ending(held, retry(queue="bulk"))])
    job = Job.objects.get(pk=held.id)
    assert (job.queue, job.status) == ("default", "scheduled")
    assert job.last_error == "Retry: busy (not moved to the queue 'bulk': it was refused there)"
    assert done.decision is not None
    assert done.decision.queue is None


def test_a_settle_whose_answer_was_lost_is_read_back_from_the_other_queue() -> None:
    ending = Ending(enqueue_and_claim(idempotency_key="k"), retry(queue="bulk"))
    for earlier in (False, True):
        (done,) = settle([ending])
        assert done.decision is not None
        assert (done.decision.queue, done.earlier) == ("bulk", earlier)
    assert Job.objects.get().last_error == "Retry: busy"
    assert Run.objects.count() == 1


def test_a_job_that_is_not_retried_keeps_its_queue_and_its_priority() -> None:
    with declared(once, name="app.once", max_attempts=1) as job_type:
        held = enqueue_and_claim(job_type)
        job = settled(held, queue="bulk", priority=9)
    assert (job.status, job.queue, job.priority) == ("dead", "default", 0)
    held = enqueue_and_claim()
    job_operations.cancel([held.id])
    job = settled(held, queue="bulk", priority=9)
    assert (job.status, job.queue, job.priority) == ("cancelled", "default", 0)


def once() -> None: ...


def test_a_queue_without_a_row_has_the_default_weight() -> None:
    held = enqueue_and_claim()
    run_sql("DELETE FROM django_jobs_queue WHERE name = 'default'")
    Queue.objects.forget_recent()
    job = settled(held, priority=1)
    assert job.rank == pytest.approx(due(job) - 60, abs=1e-3)


def test_other_endings_change_neither_queue_nor_priority() -> None:
    for outcome in (Snoozed(seconds=5), Lost(reason="SIGKILL"), failure(), Succeeded()):
        held = enqueue_and_claim(priority=4)
        settle_one(held, outcome)
        job = Job.objects.get(pk=held.id)
        assert (job.queue, job.priority) == ("default", 4)
        assert job.rank == pytest.approx(due(job) - 240, abs=1e-3)
        run_sql("UPDATE django_jobs_job SET status = 'cancelled', worker_id = NULL")


def test_a_plain_success_and_a_plain_failure_cost_no_look_at_a_queue() -> None:
    """The first still goes by arrays; of the second, the row has no further key."""
    worker = register_worker()
    noop.enqueue_many({} for _ in range(2))
    succeeded, failed = claim_ready(worker)
    now = time.monotonic()
    endings = [Ending(succeeded, Succeeded(), started=now), Ending(failed, failure(), started=now)]
    Queue.objects.forget_recent()
    with CaptureQueriesContext(connection) as statements:
        decided = settle(endings)
    assert len(statements) == 1
    assert decided[0].decision is PLAIN_SUCCESS
    given = parameters(decided)
    assert given["ids"] == f"{{{succeeded.id}}}"
    (row,) = json.loads(given["rows"])
    assert row["id"] == failed.id
    assert not {"queue", "priority", "weight"} & row.keys()


def test_a_retry_to_a_queue_costs_no_statement_once_the_queue_is_known() -> None:
    noop.enqueue_many({} for _ in range(20))
    held = claim_ready(register_worker())
    with CaptureQueriesContext(connection) as statements:
        settle([Ending(job, retry(queue="bulk")) for job in held])
    assert len(statements) <= 2
    assert Job.objects.filter(queue="bulk").count() == 20


def test_a_retry_in_another_queue_waits_in_a_line_there() -> None:
    job = settled(enqueue_and_claim(queue="default"), queue="bulk")
    assert job.gates is None
    charge_account.enqueue(7)
    admit({"default": 10}, FairShares())
    (held,) = claim_ready(register_worker())
    job = settled(held, queue="bulk")
    assert job.gates == Gates(queue="bulk", key="account:7").text
