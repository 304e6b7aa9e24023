"""Django's Tasks, from the enqueue to the result."""

from __future__ import annotations

from contextvars import Context
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_jobs import DuplicateJob, PayloadError, cancel, enqueue, registry
from django_jobs.backend.interface import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_jobs.models import Job, Resource, Run
from django_jobs.testing import run_jobs
from tests.app import jobs, tasks
from tests.factories import enqueue_and_claim, heard

pytestmark = pytest.mark.django_db

backend = task_backends["default"]


def run(result: Any) -> Any:
    """Make one attempt of each ready job, and refresh the result."""
    run_jobs()
    result.refresh()
    return result


def test_a_task_runs_as_a_job_of_its_module_path() -> None:
    result = tasks.total.enqueue(2, right=3)
    assert result.status == TaskResultStatus.READY
    job = Job.objects.get(pk=result.id)
    assert (job.job_type, job.payload) == ("tests.app.tasks.total", {"left": 2, "right": 3})
    assert run(result).status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == 5
    assert (result.args, result.kwargs, result.attempts) == ([2], {"right": 3}, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert backend.get_result(result.id) == result
    assert tasks.total.get_result(result.id) == result


def test_an_enqueue_is_part_of_the_callers_transaction() -> None:
    with transaction.atomic():
        result = tasks.total.enqueue(1)
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        tasks.total.get_result(result.id)


def test_an_async_task_runs() -> None:
    assert run(tasks.async_total.enqueue(2)).return_value == 3


def test_arguments_by_position_stay_so() -> None:
    result = tasks.everything.enqueue(1, 2, name="x")
    assert run(result).return_value == [[1, 2], {"name": "x"}]
    assert (result.args, result.kwargs) == ([1, 2], {"name": "x"})


def test_using_changes_one_request() -> None:
    later = timezone.now() + timedelta(hours=1)
    task = tasks.total.using(priority=7, queue_name="bulk", run_after=later)
    result = task.using(max_attempts=4, idempotency_key="once").enqueue(1)
    job = Job.objects.get(pk=result.id)
    assert (job.priority, job.queue, job.status) == (7, "bulk", "scheduled")
    assert (job.available_at, job.max_attempts, job.idempotency_key) == (later, 4, "once")
    found = backend.get_result(result.id)
    assert found.status == TaskResultStatus.READY
    assert (found.task.priority, found.task.queue_name, found.task.run_after) == (7, "bulk", later)
    assert task.using(idempotency_key="once").enqueue(2).id == result.id


def test_a_copy_gives_each_of_its_jobs_what_can_be_read_once() -> None:
    Resource.objects.create(name="tasks")
    task = tasks.total.using(resources=iter(["tasks"]), tags=iter(["vip"]))
    made = [Job.objects.get(pk=task.enqueue(number).id) for number in (1, 2)]
    assert [(job.resources, job.tags) for job in made] == [(["tasks"], ["vip"])] * 2


def test_a_key_that_another_task_holds_returns_its_result() -> None:
    first = tasks.total.using(idempotency_key="k").enqueue(1, right=5)
    second = tasks.everything.using(idempotency_key="k").enqueue(2)
    assert (second.id, second.task.func) == (first.id, tasks.total.func)
    assert (second.args, second.kwargs) == ([1], {"right": 5})
    assert tasks.total.get_result(second.id).task.func is tasks.total.func


def test_a_key_that_a_job_of_no_task_holds_is_refused() -> None:
    held = jobs.noop.using(idempotency_key="k").enqueue()
    with pytest.raises(DuplicateJob, match=f"job {held.pk} of app.noop holds the idem") as refused:
        tasks.total.using(idempotency_key="k").enqueue(1)
    assert refused.value.job == held
    assert Job.objects.get() == held


def test_a_task_is_tried_once_unless_it_says_otherwise() -> None:
    result = run(tasks.fail.enqueue("no"))
    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert error.traceback.endswith("ValueError: no\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_each_failed_attempt_is_an_error_of_the_result() -> None:
    result = run(tasks.second_time.enqueue())
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 2)
    assert [error.exception_class for error in result.errors] == [ConnectionError]
    workers = Run.objects.filter(job=result.id).order_by("attempt").values_list("worker", flat=True)
    assert result.worker_ids == [str(worker) for worker in workers]
    assert result.last_attempted_at > result.started_at


def test_a_cancelled_task_failed_and_says_so() -> None:
    waiting = tasks.total.enqueue(1)
    assert cancel(int(waiting.id))
    stopped = run(tasks.cancel_itself.enqueue())
    waiting.refresh()
    for result, reason in ((waiting, "cancelled"), (stopped, "nothing to do")):
        assert result.status == TaskResultStatus.FAILED
        (error,) = result.errors
        assert error.exception_class_path == "django_jobs.exceptions.Cancel"
        assert reason in error.traceback


def test_a_running_task_is_running() -> None:
    held = enqueue_and_claim(registry.get("tests.app.tasks.total"), 1)
    result = backend.get_result(str(held.id))
    assert (result.status, result.worker_ids) == (TaskResultStatus.RUNNING, [str(held.worker)])
    assert result.started_at is not None
    assert (result.args, result.kwargs) == ([], {"left": 1})


def test_the_context_is_of_the_attempt() -> None:
    result = run(tasks.about_itself.enqueue(word="hi"))
    worker = result.worker_ids
    assert result.return_value == ["hi", 1, result.id, "RUNNING", worker]


def test_an_async_task_gets_its_context_and_sends_its_signals() -> None:
    with heard(task_started) as started:
        result = run(tasks.async_about_itself.enqueue())
    assert result.return_value == [1, result.id]
    assert started[0]["task_result"].id == result.id


def test_a_task_shows_the_options_that_it_was_given() -> None:
    shown = repr(tasks.limited.using(priority=3))
    assert shown == (
        "<JobTask tests.app.tasks.limited priority=3 queue_name='bulk' timeout=60 "
        "on_cancel='ask' resources=('tasks',)>"
    )


@pytest.mark.parametrize(
    "value, path",
    [
        ({"deep": [1, float("nan")]}, "payload.left.deep[1]"),
        ("\x00", "payload.left"),
        (["\ud800"], "payload.left[0]"),
        ({1: "int"}, "payload.left"),
    ],
)
def test_what_postgresql_rejects_is_refused_before_the_insert(value: Any, path: str) -> None:
    with pytest.raises(PayloadError) as refused:
        tasks.total.enqueue(value)
    assert f"{path}: " in str(refused.value)
    assert not Job.objects.exists()


def test_what_is_not_json_is_refused_as_django_does() -> None:
    with pytest.raises(TypeError, match=r"Unsupported type: .*, in args\[1\]"):
        tasks.everything.enqueue(1, {2})
    with pytest.raises(TypeError, match=r"Unsupported type: .*, in name"):
        tasks.everything.enqueue(name=object())


def test_a_call_that_the_function_does_not_take_is_refused() -> None:
    with pytest.raises(PayloadError, match="missing a required argument: 'left'"):
        tasks.total.enqueue(right=1)


def test_annotations_are_checked_by_the_arguments_of_the_function(settings: Any) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "CHECK_ANNOTATIONS": True}
    with pytest.raises(PayloadError, match="left is a str, and its annotation is int"):
        tasks.total.enqueue("x")
    with pytest.raises(PayloadError, match="answer is a str, and its annotation is Literal"):
        tasks.choose.enqueue("maybe")
    assert tasks.everything.enqueue(1, 2, named=3).args == [1, 2]
    assert tasks.about_itself.enqueue(word="x").kwargs == {"word": "x"}


@pytest.mark.parametrize("kind, error", [("set", TypeError), ("nan", ValueError)])
def test_a_return_value_that_is_not_json_is_a_failure(kind: str, error: type) -> None:
    result = run(tasks.answer.enqueue(kind))
    assert result.status == TaskResultStatus.FAILED
    assert "return value" in result.errors[0].traceback.splitlines()[-1]
    assert result.errors[0].exception_class is error or kind == "nan"
    assert run(tasks.answer.enqueue("tuple")).return_value == [1, 2]


@pytest.mark.parametrize("wrong", ["0", "-1", "01", "x", "", "9" * 30, None, "1.0", " 1", "٣"])
def test_an_id_that_no_task_has_does_not_exist(wrong: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(wrong)


def test_a_job_that_is_no_task_does_not_exist() -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(str(jobs.noop.enqueue().pk))


def test_the_signals_are_sent_with_the_result() -> None:
    enqueue, start, finish = heard(task_enqueued), heard(task_started), heard(task_finished)
    with enqueue as enqueued, start as started, finish as finished:
        done = run(tasks.total.enqueue(1))
        run(tasks.second_time.enqueue())
    assert [one["sender"] for one in (*enqueued, *started, *finished)] == [type(backend)] * 7
    statuses = [one["task_result"].status for one in finished]
    assert statuses == [TaskResultStatus.SUCCESSFUL] * 2  # not for the attempt that is retried
    assert started[0]["task_result"].status == TaskResultStatus.RUNNING
    assert finished[0]["task_result"] == done


def test_no_backend_is_made_for_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django keeps backends by context, and the handler of each job has a new one."""
    result, made = tasks.total.enqueue(1), []
    monkeypatch.setattr(task_backends, "create_connection", made.append)
    Context().run(run_jobs)
    assert made == []
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL


def test_a_copy_cannot_change_what_workers_know_by_the_declaration() -> None:
    with pytest.raises(InvalidTask, match="is declared without timeout=5"):
        type(tasks.total)(func=tasks.total.func, timeout=5)


def test_schedules_and_enqueue_by_name_need_nothing_more() -> None:
    job = enqueue("tests.app.tasks.total", {"left": 4})
    run_jobs()
    assert backend.get_result(str(job.pk)).return_value == 5
