"""running -> anything: through the fence, with a Run."""

from __future__ import annotations

import random
import time
from datetime import timedelta

import pytest
from django.db import transaction
from pytest_django import DjangoAssertNumQueries

from django_jobs import enqueue_many
from django_jobs.domain.backoff import Backoff
from django_jobs.domain.decisions import WINDOW_OVER
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import (
    Cancelled,
    Failed,
    Lost,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from django_jobs.lifecycle import reaping
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.known_types import own_parameters
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import (
    PLAIN_SUCCESS,
    SETTLE,
    SETTLE_AND_DELETE,
    SETTLE_AND_HAND_OVER,
    SETTLE_FEW,
    SETTLE_FEW_AND_HAND_OVER,
    Ending,
    Settled,
    parameters,
    settle,
)
from django_jobs.models import Job, Run
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    declared,
    enqueue_and_claim,
    explain,
    failure,
    in_threads,
    register_worker,
    run_sql,
    settle_one,
)
from tests.moments import moment

pytestmark = pytest.mark.django_db


def ten_second_handler() -> None: ...


def test_a_success_ends_the_job_with_its_result_and_leaves_a_run() -> None:
    held = enqueue_and_claim(add, 1)
    now = time.monotonic()
    settled = settle_one(held, Succeeded(result="[1, 2]"), started=now - 1.5, finished=now)
    job, run = Job.objects.get(), Run.objects.get()
    assert settled.decision is not None
    assert (job.status, job.result, job.worker_id) == ("succeeded", [1, 2], None)
    assert job.finished_at == run.finished_at
    assert (run.job_id, run.attempt, run.outcome) == (job.pk, 1, "succeeded")
    assert run.worker_id == held.worker
    assert run.duration is not None
    assert run.duration.total_seconds() == pytest.approx(1.5, abs=1e-3)
    assert run.available_at.timestamp() == pytest.approx(held.available_at, abs=1e-3)
    assert run.claimed_at == job.claimed_at
    assert job.started_at == run.started_at


def test_a_failure_schedules_the_next_attempt_after_its_backoff() -> None:
    with declared(ten_second_handler, name="app.ten", backoff=Backoff.fixed(10)) as job_type:
        held = enqueue_and_claim(job_type)
        with moment() as now:
            settle_one(held, failure("no\nsuch order"))
    job, run = Job.objects.get(), Run.objects.get()
    assert (job.status, job.failures, job.attempt) == ("scheduled", 1, 1)
    assert job.finished_at is None
    assert job.available_at - timedelta(seconds=10) in now
    assert job.rank == pytest.approx(job.available_at.timestamp(), abs=1e-3)
    assert job.last_error == "ValueError: no"
    assert (run.outcome, run.error_type, run.error_message) == (
        "failed",
        "ValueError",
        "no\nsuch order",
    )


def test_the_code_of_an_error_is_stored_with_the_run() -> None:
    error = ErrorReport(type="HTTPError", message="Service Unavailable", code="503")
    settle_one(enqueue_and_claim(), Failed(error=error))
    settle_one(enqueue_and_claim(), failure())
    settle_one(enqueue_and_claim(), Succeeded())
    assert list(Run.objects.order_by("pk").values_list("error_code", flat=True)) == ["503", "", ""]


def test_a_postponed_job_keeps_its_priority_in_its_rank() -> None:
    settle_one(enqueue_and_claim(priority=10), failure())
    job = Job.objects.get()
    assert job.rank == pytest.approx(job.available_at.timestamp() - 600, abs=1e-3)


@pytest.mark.parametrize(
    "outcome, status, run",
    [
        (Succeeded(), "succeeded", "succeeded"),
        (failure(), "scheduled", "failed"),
        (failure(final=True), "dead", "failed"),
        (TimedOut(seconds=3), "scheduled", "timed_out"),
        (Lost(reason="SIGKILL"), "ready", "lost"),
        (Snoozed(seconds=60), "scheduled", "snoozed"),
        (Cancelled(reason="enough"), "cancelled", "cancelled"),
        (Released(reason="deploy"), "ready", "released"),
    ],
)
def test_every_outcome_leaves_its_status_and_exactly_one_run(
    outcome: Outcome, status: str, run: str
) -> None:
    settle_one(enqueue_and_claim(), outcome)
    job = Job.objects.get()
    assert (job.status, job.worker_id) == (status, None)
    assert (job.finished_at is not None) == job.is_final
    assert list(Run.objects.values_list("attempt", "outcome")) == [(1, run)]


def test_a_result_of_an_earlier_attempt_is_cleared() -> None:
    held = enqueue_and_claim()
    run_sql("UPDATE django_jobs_job SET result = '1'")
    settle_one(held, failure())
    assert Job.objects.get().result is None


def test_the_last_error_stays_readable_after_a_later_success() -> None:
    held = enqueue_and_claim()
    settle_one(held, Lost(reason="SIGKILL"))
    settle_one(claim_ready(register_worker())[0], Succeeded())
    job = Job.objects.get()
    assert (job.status, job.last_error) == ("succeeded", "WorkerLost: SIGKILL")


def test_a_late_worker_with_an_old_attempt_matches_nothing() -> None:
    late = enqueue_and_claim()
    settle_one(late, Lost(reason="partition"))
    (current,) = claim_ready(late.worker)
    assert settle_one(late, Succeeded(result='"stale"')).decision is None
    job = Job.objects.get()
    assert (job.status, job.attempt, job.result) == ("running", current.attempt, None)
    assert list(Run.objects.values_list("outcome", flat=True)) == ["lost"]


def test_a_late_worker_is_refused_although_it_has_a_run() -> None:
    held = enqueue_and_claim()
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 s'")
    reaping.reap()
    assert Run.objects.get().worker_id == held.worker
    assert settle_one(held, Succeeded()).decision is None
    assert settle_one(held, failure()).decision is None


def test_a_worker_without_the_job_matches_nothing_and_is_refused() -> None:
    held = enqueue_and_claim()
    stranger = held._replace(worker=register_worker("stranger"))
    assert settle_one(stranger, Succeeded()).decision is None
    assert settle_one(held._replace(attempt=7), Succeeded()).decision is None
    assert Job.objects.get().status == "running"
    assert not Run.objects.exists()


def test_a_settle_with_an_unknown_commit_is_read_back() -> None:
    held = enqueue_and_claim()
    ending = Ending(held, Succeeded(result="1"))
    assert settle([ending])[0].decision is not None
    again = settle([ending])[0]
    assert again.decision is not None
    assert Run.objects.count() == 1


def test_a_cancel_meanwhile_ends_a_failed_job_but_not_a_successful_one() -> None:
    failed, succeeded = enqueue_and_claim(), enqueue_and_claim()
    job_operations.cancel([failed.id, succeeded.id])
    one, other = settle([Ending(failed, failure()), Ending(succeeded, Succeeded())])
    assert one.decision is not None
    assert other.decision is not None
    assert (one.decision.status, other.decision.status) == ("cancelled", "succeeded")
    assert Job.objects.get(pk=failed.id).status == "cancelled"
    assert Job.objects.get(pk=succeeded.id).status == "succeeded"
    assert Run.objects.get(job_id=failed.id).outcome == "failed"


def test_one_lost_lease_does_not_affect_the_settle_of_others() -> None:
    enqueue_many("app.noop", [{}] * 3)
    held = claim_ready(register_worker())
    run_sql("UPDATE django_jobs_job SET attempt = 9 WHERE id = %s", [held[1].id])
    decisions = [one.decision for one in settle([Ending(job, Succeeded()) for job in held])]
    assert [decision is not None for decision in decisions] == [True, False, True]
    assert Run.objects.count() == 2


def test_texts_that_postgresql_cannot_store_are_stored_escaped() -> None:
    enqueue_many("app.noop", [{}] * 3)
    bad = "a\x00b\udc80"
    outcomes: list[Outcome] = [
        Cancelled(reason=bad),
        Failed(error=ErrorReport.of(ValueError(bad)), final=True),
        Snoozed(seconds=1, reason=bad),
    ]
    held = claim_ready(register_worker())
    endings = [Ending(job, outcome) for job, outcome in zip(held, outcomes, strict=True)]
    assert all(one.decision for one in settle(endings))
    assert Job.objects.get(pk=held[0].id).reason == "a\\x00b\\xdc80"
    assert "a\\x00b\\xdc80" in Job.objects.get(pk=held[1].id).reason


def test_a_result_with_many_digits_and_odd_letters_is_stored_unchanged() -> None:
    held = enqueue_and_claim()
    settle_one(held, Succeeded(result='{"ü": 12345678901234567890, "\\ud83d\\ude00": 1.50}'))
    assert Job.objects.get().result == {"ü": 12345678901234567890, "😀": 1.5}


def test_a_job_past_its_maximum_age_is_not_tried_again() -> None:
    with declared(ten_second_handler, name="app.ten", max_age=5) as job_type:
        held = enqueue_and_claim(job_type)
        settle_one(held, Failed(error=ErrorReport.plain("X", ""), retry_after=10))
    job = Job.objects.get()
    assert job.status == "dead"
    assert "max_age" in job.reason


def _next(job: Job) -> ClaimedJob:
    (held,) = claim_ready(register_worker(), job_types={job.job_type: 1})
    return held


def _fails(held: ClaimedJob, after: float = 0.0, ran: float = 1.0) -> Job:
    """The attempt fails after ``ran`` seconds and asks for a retry."""
    failed = Failed(error=ErrorReport.plain("X", ""), retry_after=after)
    ended = held.taken_at
    (settled,) = settle([Ending(held, failed, ended - ran, ended)])
    assert settled.decision is not None
    return Job.objects.get(pk=held.id)


def test_retries_end_a_time_after_the_first_attempt_began() -> None:
    with declared(ten_second_handler, name="app.window", retry_for=900, max_attempts=9) as window:
        job = _fails(enqueue_and_claim(window), ran=60)
        first = job.retry_until
        assert first is not None
        assert (job.status, job.started_at) == ("scheduled", first - timedelta(seconds=900))
        Job.objects.filter(pk=job.pk).update(status="ready")
        job = _fails(_next(job), ran=60, after=800)
        assert (job.status, job.retry_until) == ("scheduled", first)  # as it was
        Job.objects.filter(pk=job.pk).update(status="ready")
        job = _fails(_next(job), ran=60, after=900)
        assert (job.status, job.reason) == ("dead", WINDOW_OVER)
        job_operations.replay([job.pk], check=lambda job: None)
        job.refresh_from_db()
        assert (job.status, job.retry_until) == ("ready", None)
        job = _fails(_next(job))
        assert job.retry_until is not None
        assert job.retry_until > first


def test_a_first_attempt_longer_than_the_window_is_the_last_and_a_snooze_ends_it() -> None:
    with declared(ten_second_handler, name="app.window", retry_for=900) as window:
        assert _fails(enqueue_and_claim(window), ran=901).reason == WINDOW_OVER
        job = _fails(enqueue_and_claim(window))
        Job.objects.filter(pk=job.pk).update(status="ready")
        settle_one(_next(job), Snoozed(seconds=86_400))
        job.refresh_from_db()
        assert (job.status, job.retry_until) == ("scheduled", None)
        lost = enqueue_and_claim(window)
        settle_one(lost, Lost(reason="killed"))
        job = Job.objects.get(pk=lost.id)
        assert job.status == "ready"
        assert job.claimed_at is not None
        assert job.retry_until == job.claimed_at + timedelta(seconds=900)
        released = _next(job)
        settle_one(released, Released())
        assert Job.objects.get(pk=lost.id).retry_until == job.retry_until
        assert released.expired(released.taken_at) == ""
        assert released.expired(released.taken_at + 901) == "retry_for"


@pytest.mark.django_db(transaction=True)
def test_of_many_that_settle_one_attempt_one_writes_and_all_agree() -> None:
    held = enqueue_and_claim()
    settled = in_threads(8, lambda number: settle_one(held, Succeeded(result=str(number))))
    assert all(one.decision is not None for one in settled)
    assert Run.objects.count() == 1
    assert Job.objects.get().result in range(8)


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_settle_leaves_the_job_running() -> None:
    held = enqueue_and_claim()
    with transaction.atomic():
        settle_one(held, Succeeded())
        transaction.set_rollback(True)
    assert Job.objects.get().status == "running"
    assert not Run.objects.exists()
    assert noop.name == held.job_type


def test_a_settle_of_nothing_sends_nothing(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_num_queries(0):
        assert settle([]) == []


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("live", [20, 60, 300, 3_000, 15_000])
def test_a_batch_is_locked_in_the_order_of_its_ids(live: int, analyzed: bool) -> None:
    """As all that locks jobs, or two of them wait for each other. A planner that expects more than
    one ending joins up to 15,000 jobs by a hash, in the order in which they lie."""
    run_sql("TRUNCATE django_jobs_job, django_jobs_run")
    noop.enqueue_many({} for _ in range(live))
    if analyzed:
        run_sql("ANALYZE django_jobs_job_live")
    held = claim_ready(register_worker(), limit=min(live, 500))
    for job in random.sample(held, len(held)):  # each comes to lie behind those before
        run_sql("UPDATE django_jobs_job_live SET reason = 'moved' WHERE id = %s", [job.id])
    endings = [Ending(job, Succeeded(), started=0.0) for job in held]
    decided = [Settled(ending, PLAIN_SUCCESS) for ending in endings]
    given = parameters(decided) | {**own_parameters(), "compared": [], "with_runs": True}
    few = {"few": [job.id for job in held]}
    many = (SETTLE, SETTLE_AND_HAND_OVER, SETTLE_AND_DELETE)
    for statement in (*many, SETTLE_FEW, SETTLE_FEW_AND_HAND_OVER):
        plan = explain(statement, given | few)
        names = [[str(one.get("Alias")) for one in node.get("Plans", ())] for node in plan]
        assert ["s", "job"] in [[name.partition("_")[0] for name in both] for both in names]
        assert live < 300 or "django_jobs_job_pkey" in {one.get("Index Name") for one in plan}
    settle(endings)
    ended = run_sql("SELECT id FROM django_jobs_job WHERE status = 'succeeded' ORDER BY ctid")
    assert [id_ for (id_,) in ended] == sorted(job.id for job in held)


def test_successes_with_and_without_listeners_are_written_alike() -> None:
    """The first comes in arrays, the second as JSON."""
    first, second = (noop.enqueue().pk for _ in range(2))
    Job.objects.filter(pk=second).update(failures=1)
    now = time.monotonic()
    held = claim_ready(register_worker())
    settle([Ending(job, Succeeded(), started=now - 2.0, finished=now - 0.5) for job in held])
    plain, failing = (Job.objects.get(pk=pk) for pk in (first, second))
    assert (plain.failures, failing.failures) == (0, 1)
    for job in (plain, failing):
        run = Run.objects.get(job=job)
        assert (job.status, run.outcome, run.available_at) == (
            "succeeded",
            "succeeded",
            job.available_at,
        )
        assert run.duration == timedelta(seconds=1.5)
        assert (run.started_at, run.finished_at) == (job.started_at, job.finished_at)
        assert (job.worker_id, job.reason, job.last_error, job.result) == (None, "", "", None)
    assert abs((plain.finished_at - failing.finished_at).total_seconds()) < 1e-4
