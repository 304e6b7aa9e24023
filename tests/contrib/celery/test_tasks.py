"""Celery tasks that are enqueued as rows and run by django_jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("celery")

from celery.exceptions import Reject, TimeLimitExceeded
from django.db import transaction

from django_jobs import PayloadError, registry
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job
from django_jobs.testing import assert_enqueued, refute_enqueued, run_jobs
from tests.contrib.celery.project import tasks
from tests.contrib.celery.running import run_all
from tests.factories import claim_ready, register_worker
from tests.patience import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


def test_delay_writes_a_row_of_the_tasks_name() -> None:
    result = tasks.add.delay(1, y=2)
    job = Job.objects.get()
    assert job.job_type == "tests.contrib.celery.project.tasks.add"
    assert (job.payload, job.queue, job.status) == ({"x": 1, "y": 2}, "default", "ready")
    assert (result.status, result.ready()) == ("PENDING", False)


def test_a_task_stands_for_its_job_type_in_the_testing_kit() -> None:
    tasks.add.delay(1, y=2)
    assert_enqueued(tasks.add, payload={"x": 1}, count=1)
    refute_enqueued(tasks.fail)
    (run,) = run_jobs(job_type=tasks.add)
    assert run.outcome == "succeeded"


def test_a_row_is_part_of_the_callers_transaction() -> None:
    with transaction.atomic():
        tasks.add.delay(1)
        transaction.set_rollback(True)
    assert not Job.objects.exists()


def test_the_result_is_that_of_the_row() -> None:
    result = tasks.add.delay(1, y=2)
    run_all()
    assert result.get(timeout=PATIENCE) == 3
    assert (result.state, result.successful(), result.failed()) == ("SUCCESS", True, False)
    assert tasks.add.AsyncResult(result.id).result == 3


def test_a_failure_is_final_and_is_raised_by_get() -> None:
    result = tasks.fail.delay("no")
    run_all()
    with pytest.raises(ValueError, match=r"^no$"):
        result.get(timeout=PATIENCE)
    assert (result.state, result.failed()) == ("FAILURE", True)
    assert "raise ValueError(message)" in result.traceback
    assert Job.objects.get().status == "dead"


def test_arguments_without_names_are_kept_as_a_pair() -> None:
    result = tasks.total.delay(1, 2, 3, discount=1)
    run_all()
    assert result.get(timeout=PATIENCE) == 5
    assert Job.objects.get().payload == {"args": [1, 2, 3], "kwargs": {"discount": 1}}


def test_a_bound_task_sees_its_request() -> None:
    result = tasks.describe.apply_async((1,), {"a": 2}, headers={"trace": "x"})
    run_all()
    assert result.get(timeout=PATIENCE) == {
        "id": result.id,
        "args": [1],
        "kwargs": {"a": 2},
        "retries": 0,
        "called_directly": False,
        "is_eager": False,
        "headers": {"trace": "x"},
    }
    assert UUID(result.id).version == 8


def test_a_call_and_apply_run_at_once() -> None:
    assert tasks.add(1, 2) == 3
    assert tasks.describe.apply((1,)).get()["is_eager"]
    assert tasks.fetch.apply(("x", 1)).get() == ["x", 1]
    assert not Job.objects.exists()


def test_a_job_type_can_be_enqueued_by_its_name() -> None:
    job = registry.get("tests.contrib.celery.project.tasks.describe").enqueue(kwargs={"a": 1})
    run_all()
    job.refresh_from_db()
    assert job.result["kwargs"] == {"a": 1}


def test_dates_and_numbers_travel_as_in_celerys_json() -> None:
    day, key = datetime(2026, 5, 1, tzinfo=UTC), UUID(int=4 << 76 | 8 << 60)
    result = tasks.typed.delay(day, key, Decimal("1.10"))
    stored = Job.objects.get().payload
    assert stored["amount"] == {"__type__": "decimal", "__value__": "1.10"}
    run_all()
    assert result.get(timeout=PATIENCE) == [2026, 4, Decimal("2.10")]


@pytest.mark.parametrize("value", [object(), {1, 2}.__iter__()])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match="not JSON"):
        tasks.add.delay(value)
    assert not Job.objects.exists()


def test_wrong_arguments_are_refused_as_by_celery() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        tasks.add.delay()


class TestRetries:
    def test_a_retry_is_the_next_attempt_of_the_same_job(self) -> None:
        result = tasks.fetch.delay("http://x", failures=2)
        run_all()
        assert result.get(timeout=PATIENCE) == ["http://x", 2]
        job = Job.objects.get()
        assert (job.attempt, job.failures, job.max_attempts) == (3, 2, 3)

    def test_the_last_failure_is_that_of_the_task(self) -> None:
        result = tasks.fetch.delay("http://x", failures=9)
        run_all()
        with pytest.raises(ConnectionError, match="no answer from http://x"):
            result.get(timeout=PATIENCE)
        assert Job.objects.get().attempt == 3

    def test_a_retry_may_change_the_arguments(self) -> None:
        result = tasks.count_down.delay(3)
        run_all()
        assert result.get(timeout=PATIENCE) == "done after 3"
        assert Job.objects.get().payload == {"number": 3}

    def test_a_retry_may_change_the_queue_and_the_priority(
        self, declare: Callable[..., Any]
    ) -> None:
        def ask(self: Any) -> None:
            if not self.request.retries:
                raise self.retry(queue="emails", priority=7, countdown=0)

        declare(ask, bind=True).apply_async(queue="bulk", priority=2)
        run_jobs()
        assert [(job.queue, job.priority) for job in Job.objects.all()] == [("emails", 7)]

    @pytest.mark.parametrize("option", [{"expires": 60}, {"time_limit": 9}])
    def test_a_retry_keeps_the_other_options(
        self, declare: Callable[..., Any], option: dict[str, Any]
    ) -> None:
        def ask(self: Any) -> None:
            raise self.retry(countdown=0, **option)

        declare(ask, bind=True).delay()
        run_jobs()
        job = Job.objects.get()
        assert job.status == "dead"
        assert f"retry() cannot change {next(iter(option))}" in job.reason

    def test_a_retry_may_change_the_headers(self, declare: Callable[..., Any]) -> None:
        def ask(self: Any) -> Any:
            if self.request.retries < 2:
                change = {} if self.request.retries else {"headers": {"a": 2}}
                raise self.retry(countdown=0, **change)
            return self.request.headers

        result = declare(ask, bind=True).apply_async(headers={"a": 1})
        run_all()
        assert result.get(timeout=PATIENCE) == {"a": 2}

    def test_a_task_that_names_itself_is_retried(self, declare: Callable[..., Any]) -> None:
        def ask(self: Any) -> int:
            if not self.request.retries:
                raise self.retry(countdown=0)
            return int(self.request.retries)

        task = declare(ask, bind=True, shadow_name=lambda *_: "shadow")
        registry.get(task.name).enqueue()
        run_all()
        assert Job.objects.get().result == 1

    def test_autoretry_waits_longer_each_time(self) -> None:
        result = tasks.download.delay("http://x", failures=2)
        waits = []
        for wait in (1, 2):
            (run,) = run_jobs()
            assert (
                run.error_message == f"Retry in {wait}s: ConnectionError('no answer from http://x')"
            )
            waits.append(Job.objects.get().available_at - run.finished_at)
            job_operations.run_now([run.job_id])
        run_jobs()
        assert [round(wait.total_seconds()) for wait in waits] == [1, 2]
        assert result.get(timeout=PATIENCE) == ["http://x", 2]

    def test_hooks_of_a_base_class_are_called(self) -> None:
        tasks.download.seen.clear()
        tasks.download.delay("http://x", failures=1)
        run_all()
        assert tasks.download.seen == [
            ("retry", "no answer from http://x", ["http://x"], {"failures": 1}),
            ("success", ["http://x", 1], ["http://x"], {"failures": 1}),
        ]

    def test_an_error_that_is_not_to_be_retried_is_final(self) -> None:
        result = tasks.download.delay("http://x", missing=True)
        run_all()
        with pytest.raises(FileNotFoundError):
            result.get(timeout=PATIENCE)


def nap() -> None:
    while True:
        time.sleep(0.01)


def doze() -> None: ...


def refuse() -> None:
    raise Reject("malformed", requeue=True)


class TestFates:
    def test_an_ignored_task_is_cancelled(self) -> None:
        result = tasks.decide.delay("ignore")
        run_all()
        job = Job.objects.get()
        assert (job.status, job.reason) == ("cancelled", "ignored by the task: not needed")
        assert result.state == "IGNORED"

    def test_a_rejected_task_is_a_dead_letter(self) -> None:
        tasks.decide.delay("reject")
        run_all()
        job = Job.objects.get()
        assert (job.status, job.reason) == (
            "dead",
            "not retried: django_jobs.exceptions.Discard: rejected by the task: malformed",
        )

    def test_a_requeued_task_runs_again(self) -> None:
        tasks.decide.delay("requeue")
        runs = run_all()
        assert [run.outcome for run in runs] == ["snoozed", "failed"]

    def test_a_task_without_acks_late_is_not_requeued(self, declare: Callable[..., Any]) -> None:
        """Its message was acknowledged before it began, so Celery has nothing to requeue."""
        declare(refuse).delay()
        assert [run.outcome for run in run_all()] == ["failed"]

    def test_a_soft_time_limit_is_raised_in_the_task(self) -> None:
        result = tasks.work.delay(20)
        run_all()
        assert result.get(timeout=PATIENCE) == "cleaned up"
        assert Job.objects.get().timeout == 30

    def test_a_hard_time_limit_is_final_unless_its_message_stays(
        self, declare: Callable[..., Any]
    ) -> None:
        """As in Celery, whose ``acks_on_timeout`` is true by default."""
        final = declare(nap, acks_late=True, time_limit=0.05, autoretry_for=(Exception,))
        result = final.delay()
        run_jobs()
        assert Job.objects.get().status == "dead"
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=PATIENCE)
        again = declare(doze, acks_late=True, acks_on_failure_or_timeout=False)
        assert registry.get(again.name).max_attempts == 4

    def test_acks_late_decides_the_delivery(self) -> None:
        tasks.download.delay("x")
        tasks.add.delay(1)
        jobs = Job.objects.order_by("pk")
        assert [job.at_most_once for job in jobs] == [False, True]

    @pytest.mark.parametrize("terminate", [False, True])
    @pytest.mark.parametrize("control", [False, True])
    def test_a_terminated_task_is_stopped_by_force(self, terminate: bool, control: bool) -> None:
        result = tasks.add.delay(1)
        claim_ready(register_worker(), "default")
        no_signal = pytest.warns(RuntimeWarning, match="SIGKILL'.: no process is sent a signal")
        with no_signal if terminate else nullcontext():
            if control:
                tasks.add.app.control.revoke([result.id], terminate=terminate, signal="SIGKILL")
            else:
                result.revoke(terminate=terminate, signal="SIGKILL")
        job = Job.objects.get()
        assert job.cancel_requested_at is not None
        assert (job.force_requested_at is not None) is terminate
        tasks.add.app.control.terminate(result.id, signal="SIGTERM")
        result.revoke(terminate=True)
        with pytest.warns(RuntimeWarning, match="no process is sent a signal"):
            tasks.add.app.control.terminate(result.id, signal=9)
        job.refresh_from_db()
        assert job.force_requested_at is not None

    @pytest.mark.parametrize(
        ("of", "revoked"),
        [
            (lambda _: None, 0),  # a column of a message that was never sent
            (lambda _: [], 0),
            (lambda key: key, 1),
            (lambda key: UUID(key), 1),
            (lambda key: (one for one in [key, UUID(int=1)]), 1),
            (lambda key: {UUID(key)}, 1),
        ],
    )
    def test_revoke_takes_what_celery_takes(self, of: Callable[[str], Any], revoked: int) -> None:
        result, control = tasks.add.delay(1), tasks.add.app.control
        assert control.revoke(of(result.id), ["celery@other"], False, "SIGTERM", reply=True) == []
        assert Job.objects.filter(status="cancelled").count() == revoked

    @pytest.mark.parametrize(
        ("arguments", "forced"),
        [((["celery@other"],), False), ((None, True, "SIGTERM"), True)],
    )
    def test_the_second_argument_of_revoke_is_a_destination(
        self, arguments: tuple[Any, ...], forced: bool
    ) -> None:
        result = tasks.add.delay(1)
        claim_ready(register_worker(), "default")
        tasks.add.app.control.revoke(result.id, *arguments)
        assert (Job.objects.get().force_requested_at is not None) is forced
        tasks.add.app.control.terminate(result.id, None, "TERM")
        assert Job.objects.get().force_requested_at is not None

    def test_a_misspelt_option_of_revoke_is_refused(self) -> None:
        result, control = tasks.add.delay(1), tasks.add.app.control
        for revoke, option, meant in (
            (control.revoke, "termintae", "terminate"),
            (control.terminate, "sginal", "signal"),
        ):
            with pytest.raises(TypeError, match=f"no option '{option}'; did you mean '{meant}'"):
                revoke(result.id, **{option: True})
        assert Job.objects.get().status == "ready"
        result.revoke(wait=True, timeout=1)
        assert Job.objects.get().status == "cancelled"

    def test_a_revoked_task_is_a_cancelled_job(self) -> None:
        from celery.exceptions import TaskRevokedError

        result = tasks.add.delay(1)
        result.revoke()
        assert Job.objects.get().status == "cancelled"
        assert (result.state, result.ready()) == ("REVOKED", True)
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE)
