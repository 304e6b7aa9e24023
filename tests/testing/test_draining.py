"""Jobs run in the process and the transaction of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction

from django_jobs import UnknownQueue, Workflow, registry
from django_jobs.models import Job, Progress, Queue, Run, Worker
from django_jobs.signals import job_dead, job_finished
from django_jobs.testing import JobFailed, arun_jobs, draining, run_jobs
from tests.app import jobs, kit_jobs
from tests.app.models import Effect
from tests.factories import heard

pytestmark = pytest.mark.django_db


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """The calls that handlers have made outside."""
    made: list[str] = []

    def pay() -> str:
        made.append("pay")
        return f"receipt {len(made)}"

    def fail() -> None:
        made.append("fail")
        raise ConnectionError("no answer")

    kit_jobs.calls.update(pay=pay, fail=fail)
    yield made
    kit_jobs.calls.clear()


def notes() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("note", flat=True))


def result(job: Job) -> Any:
    job.refresh_from_db()
    return job.status, job.result


def test_a_ready_job_is_run_and_settled_in_the_transaction_of_the_test() -> None:
    job = jobs.add.enqueue(2, 3)
    (run,) = run_jobs()
    assert (run.job, run.attempt, run.outcome) == (job, 1, "succeeded")
    assert result(job) == ("succeeded", 5)
    assert run.duration is not None
    assert connection.in_atomic_block
    assert run_jobs() == []


@pytest.mark.django_db(transaction=True)
def test_jobs_run_outside_of_a_transaction_too(calls: list[str]) -> None:
    kit_jobs.call_once.enqueue("pay")
    kit_jobs.once_and_for_all.enqueue("one")
    assert [run.outcome for run in run_jobs()] == ["succeeded"] * 2
    assert notes() == ["receipt 1", "one"]


def test_jobs_run_in_the_order_of_a_queue_and_what_they_enqueue_after_them() -> None:
    kit_jobs.enqueue_others.enqueue(2)
    jobs.write_effect.enqueue("second")
    jobs.write_effect.using(queue="bulk", priority=10).enqueue("first")
    assert len(run_jobs()) == 5
    assert notes() == ["first", "second", "other 0", "after other 0", "other 1", "after other 1"]


def test_the_queue_and_the_job_type_restrict_what_is_run() -> None:
    jobs.write_effect.using(queue="bulk").enqueue("bulk")
    jobs.write_effect.enqueue("default")
    jobs.noop.enqueue()
    run_jobs(queue="bulk")
    assert notes() == ["bulk"]
    assert [run.job.job_type for run in run_jobs(job_type=jobs.noop)] == ["app.noop"]
    assert len(run_jobs(job_type="app.write_effect")) == 1


def test_no_job_is_started_once_the_condition_is_true() -> None:
    first, second = jobs.noop.enqueue(), jobs.noop.enqueue()
    jobs.noop.enqueue()
    assert len(run_jobs(until=first)) == 1
    assert len(run_jobs(until=lambda: result(second)[0] == "succeeded")) == 1
    assert Job.objects.filter(status="ready").count() == 1


def test_a_failure_is_in_the_run_and_the_retry_waits(calls: list[str]) -> None:
    job = kit_jobs.effect_and_call.enqueue("kept", "fail")
    (run,) = run_jobs()
    assert (run.outcome, run.error_type) == ("failed", "ConnectionError")
    assert run.error_message == "no answer"
    assert "kit_jobs.py" in run.traceback
    assert result(job)[0] == "scheduled"
    assert notes() == ["kept"], "as in a worker, what was written before is committed"


def test_check_raises_the_failure_after_the_settle(calls: list[str]) -> None:
    job = kit_jobs.effect_and_call.enqueue("kept", "fail")
    with pytest.raises(JobFailed, match="attempt 1 failed: ConnectionError: no answer"):
        run_jobs(check=True)
    assert result(job)[0] == "scheduled"


def test_check_raises_from_what_the_handler_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kit_jobs.calls, "call", lambda: 1 / 0)
    kit_jobs.effect_and_call.enqueue("kept", "call")
    with pytest.raises(JobFailed) as raised:
        run_jobs(check=True)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, pytest.fail.Exception])
def test_what_ends_a_test_is_raised_through_a_handler(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def call() -> None:
        raise kind("not to be called")

    monkeypatch.setitem(kit_jobs.calls, "call", call)
    kit_jobs.effect_and_call.enqueue("kept", "call")
    with pytest.raises(kind, match="not to be called"):
        run_jobs()


def test_a_handler_that_exits_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kit_jobs.calls, "call", sys.exit)
    kit_jobs.effect_and_call.enqueue("kept", "call")
    assert [run.outcome for run in run_jobs()] == ["failed"]


def test_a_statement_that_fails_ends_no_transaction_of_the_test() -> None:
    job = kit_jobs.break_a_constraint.enqueue()
    run_jobs(check=True)
    assert result(job) == ("succeeded", 2)
    assert notes() == ["before", "after"]


def test_a_handler_is_in_no_transaction() -> None:
    job = kit_jobs.is_in_no_transaction.enqueue()
    with transaction.atomic():
        run_jobs(check=True)
    assert result(job)[1] is True


def test_what_waits_for_the_commit_of_a_handler_is_called() -> None:
    kit_jobs.effect_after_commit.enqueue("it")
    run_jobs(check=True)
    assert notes() == ["it", "after it"]


def test_an_exactly_once_job_is_settled_in_the_transaction_of_its_handler() -> None:
    job = kit_jobs.once_and_for_all.enqueue("one")
    kit_jobs.once_and_for_all.enqueue("two", fails=True)
    assert [run.outcome for run in run_jobs()] == ["succeeded", "failed"]
    assert result(job) == ("succeeded", "one")
    assert notes() == ["one"]


def test_an_answer_is_kept_when_the_transaction_is_rolled_back(calls: list[str]) -> None:
    job = kit_jobs.call_once_in_transaction.using(max_attempts=2).enqueue("pay")
    run_jobs()
    Job.objects.filter(pk=job.pk).update(status="ready")
    run_jobs()
    assert result(job) == ("succeeded", "receipt 1")
    assert calls == ["pay"]
    assert notes() == ["in vain"]


@pytest.mark.django_db(transaction=True)
def test_it_is_kept_where_the_test_is_in_no_transaction(calls: list[str]) -> None:
    job = kit_jobs.call_once_in_transaction.using(max_attempts=2).enqueue("pay")
    assert [run.error_type for run in run_jobs()] == ["ValueError"]
    Job.objects.filter(pk=job.pk).update(status="ready")
    run_jobs()
    assert result(job) == ("succeeded", "receipt 1")
    assert calls == ["pay"]


def test_progress_and_checkpoints_are_written() -> None:
    job = kit_jobs.report_progress.enqueue()
    run_jobs()
    progress = Progress.objects.get(job=job)
    assert (progress.fraction, progress.note, progress.checkpoint) == (
        *(0.25, "a quarter"),
        {"page": 1},
    )
    Job.objects.filter(pk=job.pk).update(status="ready")
    run_jobs(check=True)
    assert Progress.objects.get(job=job).checkpoint == {"page": 2}


@pytest.mark.parametrize("job_type", [kit_jobs.too_slow_here, kit_jobs.too_slow_in_async])
def test_a_time_out_ends_the_handler(job_type: Any) -> None:
    job = job_type.enqueue()
    (run,) = run_jobs()
    assert run.outcome == "timed_out"
    assert result(job)[0] == "dead"


def test_an_async_handler_uses_the_connection_of_the_test() -> None:
    job = kit_jobs.effect_in_async.enqueue("async")
    (run,) = run_jobs()
    assert run.outcome == "snoozed"
    assert notes() == ["async"]
    assert Progress.objects.get(job=job).note == "half"


def test_a_fan_out_is_run_to_its_end() -> None:
    kit_jobs.fan_out.enqueue(3)
    run_jobs(check=True)
    assert Job.objects.get(job_type="app.total").result["sum"] == 3


async def _run_in_async() -> list[Run]:
    await sync_to_async(jobs.noop.enqueue)()
    await sync_to_async(kit_jobs.effect_in_async.enqueue)("async")
    return await arun_jobs()


def test_an_async_test_awaits_the_jobs() -> None:
    """As Django runs the async tests of its TestCase."""
    assert [run.outcome for run in async_to_sync(_run_in_async)()] == ["succeeded", "snoozed"]
    assert notes() == ["async"]


def test_jobs_with_gates_are_admitted_one_after_the_other() -> None:
    for account in "aab":
        kit_jobs.one_at_a_time.enqueue(account)
    assert Job.objects.filter(status="blocked").count() == 3
    assert len(run_jobs(check=True)) == 3


def test_a_paused_queue_is_not_served_and_a_limit_is_kept() -> None:
    jobs.noop.using(queue="bulk").enqueue()
    jobs.noop.using(queue="emails").enqueue()
    Queue.objects.filter(name="bulk").update(paused_at="2026-01-01T00:00Z")
    assert [run.job.queue for run in run_jobs()] == ["emails"]


def test_a_job_that_its_queue_does_not_keep_has_a_run_all_the_same() -> None:
    Queue.objects.filter(name="bulk").update(retention={"succeeded": 0})
    job = jobs.noop.using(queue="bulk").enqueue()
    (run,) = run_jobs()
    assert (run.outcome, run.job_id) == ("succeeded", job.pk)
    assert not Job.objects.filter(pk=job.pk).exists()


def test_the_signals_of_a_job_are_sent() -> None:
    with heard(job_finished) as finished, heard(job_dead) as dead:
        jobs.noop.enqueue()
        jobs.fail.using(max_attempts=1).enqueue()
        run_jobs()
    assert [one["sender"] for one in finished] == ["app.noop", "app.fail"]
    assert [one["sender"] for one in dead] == ["app.fail"]


def test_a_job_that_enqueues_itself_does_not_run_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "MOST_ATTEMPTS", 5)
    kit_jobs.enqueue_itself.enqueue()
    with pytest.raises(RuntimeError, match=r"5 attempts.* app.enqueue_itself"):
        run_jobs()


def test_the_worker_of_a_test_is_stopped_afterwards() -> None:
    jobs.noop.enqueue()
    run_jobs()
    assert Worker.objects.get(name="run_jobs").status == "stopped"


def test_a_failed_run_is_retried_from_its_failed_step(calls: list[str]) -> None:
    workflow = Workflow("kit.retried")
    first = workflow.step(jobs.write_effect, name="first")
    workflow.step(kit_jobs.effect_and_call, name="second", after=first)
    try:
        run = workflow.start(note="seen", call="fail")
        run_jobs(until=timedelta(minutes=5))
        run.refresh_from_db()
        assert (run.status, calls) == ("failed", ["fail"] * 3)
        kit_jobs.calls["fail"] = kit_jobs.calls["pay"]
        run.retry("mended")
        (last,) = run_jobs(check=True)
        assert (last.job.step, last.outcome, last.attempt) == ("second", "succeeded", 4)
        run.refresh_from_db()
        assert run.status == "succeeded"
        assert notes() == ["seen"] * 5
    finally:
        registry.forget_workflow("kit.retried")


def test_an_unknown_queue_is_an_error() -> None:
    jobs.noop.enqueue()
    with pytest.raises(UnknownQueue, match=r"run_jobs\(\): .* did you mean 'default'\? known are"):
        run_jobs(queue="defalt")
    assert Job.objects.get().status == "ready"
