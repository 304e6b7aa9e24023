"""A success that is not kept is deleted by the statement that settles it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection
from pytest_django import DjangoAssertNumQueries, Settings

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.progress import ProgressReport, report, store
from django_jobs.lifecycle.promoting import peek
from django_jobs.lifecycle.settling import Ending, Settled, settle
from django_jobs.models import Job, Progress, Queue, Receipt, Run
from tests.factories import claim_ready, enqueue_and_claim, failure, run_sql, settle_one

pytestmark = pytest.mark.django_db


def succeed(job: ClaimedJob, result: str | None = None) -> Settled:
    """Settle it as a job that is not kept."""
    (settled,) = settle([Ending(job, Succeeded(result=result), started=0.0, kept=False)])
    return settled


def test_it_leaves_nothing_and_takes_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    held = enqueue_and_claim()
    report([ProgressReport(job=held, fraction=0.5)])
    store(held, "charge", "1")
    with django_assert_num_queries(1):
        settled = succeed(held, '{"answer": 42}')
    assert settled.decision is not None
    assert settled.decision.result == '{"answer": 42}', "for the receivers of signals"
    for model in Job, Run, Progress, Receipt:
        assert not model._default_manager.exists()


def test_its_earlier_runs_go_too() -> None:
    held = enqueue_and_claim()
    settle_one(held, failure())
    run_sql("UPDATE django_jobs_job SET status = 'ready'")
    (again,) = claim_ready(held.worker)
    succeed(again)
    assert not Run.objects.exists()


def test_runs_with_an_age_stay(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"runs": "30d"}}
    held = enqueue_and_claim()
    succeed(held)
    run = Run.objects.get()
    assert (run.job_id, run.outcome) == (held.id, "succeeded")
    assert run.started_at is not None
    assert not Job.objects.exists()


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_has_its_span_and_its_log_whether_its_job_is_kept_or_not(
    settings: Settings, kept: bool
) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"runs": "30d"}}
    traced, plain = enqueue_and_claim(), enqueue_and_claim()
    span = f"00-{1:032x}-{2:016x}-01"
    settle(
        [
            Ending(traced, Succeeded(), started=0.0, kept=kept, traceparent=span, log="a line"),
            Ending(plain, Succeeded(), started=0.0, kept=kept),
        ]
    )
    assert set(Run.objects.values_list("job_id", "traceparent", "log")) == {
        (traced.id, span, "a line"),
        (plain.id, "", None),
    }


def test_failures_and_kept_jobs_of_the_same_batch_are_written_as_always() -> None:
    gone, failed, kept = (enqueue_and_claim() for _ in range(3))
    settled = settle(
        [
            Ending(gone, Succeeded(), kept=False),
            Ending(failed, failure(final=True), kept=False),
            Ending(kept, Succeeded()),
        ]
    )
    assert all(one.decision is not None for one in settled)
    assert dict(Job.objects.values_list("pk", "status")) == {
        failed.id: "dead",
        kept.id: "succeeded",
    }


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_is_repeated_after_an_error_is_settled_as_a_whole() -> None:
    gone, kept = enqueue_and_claim(), enqueue_and_claim()
    endings = [Ending(gone, Succeeded(), kept=False), Ending(kept, Succeeded())]
    for statement in "deleted AS", "updated AS":
        with connection.execute_wrapper(refusing(statement)), pytest.raises(OperationalError):
            settle(endings)
    settled = settle(endings)
    assert [one.decision is not None and one.decision.status for one in settled] == [
        "succeeded",
        "succeeded",
    ]
    assert Job.objects.get().pk == kept.id


def refusing(statement: str) -> Callable[..., Any]:
    """The database is away when it is sent."""

    def refuse(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if statement in sql:
            raise OperationalError("the server closed the connection")
        return execute(sql, *rest)

    return refuse


def test_an_attempt_that_lost_its_lease_deletes_nothing() -> None:
    held = enqueue_and_claim()
    run_sql("UPDATE django_jobs_job SET attempt = 2")
    assert succeed(held).decision is None
    assert Job.objects.get().status == "running"


def test_a_success_that_a_cancel_overtook_is_deleted_as_one() -> None:
    held = enqueue_and_claim()
    job_operations.cancel([held.id])
    assert succeed(held).decision is not None
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "default, own, unkept",
    [
        ("7d", None, set()),
        ("7d", {"succeeded": 0}, {"bulk"}),
        ("7d", {"succeeded": "0d"}, {"bulk"}),
        ("7d", {"succeeded": "soon"}, set()),
        ("7d", {"succeeded": None}, set()),
        (0, None, {"bulk", "default"}),
        ("0s", {"succeeded": "1d"}, {"default"}),
        (0, {"dead": "1d"}, {"bulk", "default"}),
        (0, {"succeeded": None}, {"default"}),
    ],
)
def test_a_poll_names_the_queues_that_keep_no_successes(
    settings: Settings, default: object, own: object, unkept: set[str]
) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"succeeded": default}}
    Queue.objects.filter(name="bulk").update(retention=own)
    assert peek(["bulk", "default"]).unkept == unkept
