"""The states that tasks report of themselves and of others, and what ``AsyncResult`` reads beside
the result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

pytest.importorskip("celery")

from asgiref.sync import sync_to_async
from celery import Task, chain, chord, group
from celery.contrib.abortable import AbortableAsyncResult, AbortableTask
from celery.exceptions import Ignore
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from django_jobs import JobsError, current_run
from django_jobs.testing import run_jobs
from django_jobs.worker.context import progress
from django_jobs.worker.statement_timeout import StatementTimedOut
from tests.contrib.celery.project import celery_app, tasks
from tests.contrib.celery.running import run_all
from tests.contrib.celery.test_results import in_a_thread
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


class TestUpdateState:
    @pytest.mark.parametrize("meta", [{"n": 2}, None, [math.inf, date(2026, 5, 1)], "\x00", 0])
    def test_it_is_seen_at_once_also_in_a_transaction(
        self, meta: Any, declare: Callable[..., Any]
    ) -> None:
        seen = []

        def reports(self: Any) -> None:
            read = self.AsyncResult(self.request.id)
            self.update_state(state="BEGUN")
            seen.append((read.state, read.result))
            with transaction.atomic():
                self.update_state(state="PROGRESS", meta=meta)
                seen.append((read.state, read.result))
                transaction.set_rollback(True)
            seen.append((read.state, read.result))

        declare(reports, bind=True).delay()
        run_jobs()
        assert seen == [("BEGUN", None), ("PROGRESS", meta), ("PROGRESS", meta)]

    @pytest.mark.django_db
    def test_so_it_is_in_the_transaction_of_a_test(self, declare: Callable[..., Any]) -> None:
        seen = []

        def reports(self: Any) -> None:
            read = self.AsyncResult(self.request.id)
            with transaction.atomic():
                self.update_state(state="PROGRESS", meta=1)
                transaction.set_rollback(True)
            seen.append((read.state, read.result))
            if not self.request.retries:
                raise self.retry(countdown=9, args=[], exc=KeyError("k"))
            raise KeyError("the end")

        result = declare(reports, bind=True).delay()
        run_jobs()
        assert (result.state, result.result.args) == ("RETRY", ("k",))
        run_all()
        assert seen == [("PROGRESS", 1), ("PROGRESS", 1)]
        assert (result.state, result.result.args) == ("FAILURE", ("the end",))

    def test_it_lasts_until_the_retry_or_the_end(self, declare: Callable[..., Any]) -> None:
        seen = []

        def again(self: Any) -> str:
            read = self.AsyncResult(self.request.id)
            seen.append(read.state)
            self.update_state(state="PROGRESS", meta=self.request.retries)
            seen.append((read.state, read.result))
            if not self.request.retries:
                raise self.retry(countdown=9)
            return "done"

        result = declare(again, bind=True).delay()
        run_jobs()
        assert (result.state, result.result) == ("RETRY", None)
        run_all()
        assert seen == ["PENDING", ("PROGRESS", 0), "RETRY", ("PROGRESS", 1)]
        assert (result.state, result.result) == ("SUCCESS", "done")

    def test_of_a_task_that_is_ignored_it_stays(self, declare: Callable[..., Any]) -> None:
        def left(self: Any, state: str, meta: Any) -> None:
            self.update_state(state=state, meta=meta)
            raise Ignore

        task = declare(left, bind=True)
        mine, error = task.delay("SUCCESS", "early"), {"exc_type": "ValueError", "exc_message": "x"}
        failed = task.delay("FAILURE", {**error, "exc_module": "builtins"})
        run_all()
        assert (mine.state, mine.get(timeout=PATIENCE)) == ("SUCCESS", "early")
        with pytest.raises(ValueError, match=r"^x$"):
            failed.get(timeout=PATIENCE)

    def test_one_that_cannot_be_written_now_is_written_later(
        self, declare: Callable[..., Any], monkeypatch: Any
    ) -> None:
        """Such as while a view that aborts the task holds the lock of its row."""
        refused = []

        def refuse(news: Any) -> Any:
            refused.append(news)
            raise StatementTimedOut

        def reports(self: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(progress, "report", refuse)
                self.update_state(state="PROGRESS", meta=1)
            raise Ignore

        result = declare(reports, bind=True).delay()
        run_jobs()
        assert len(refused) == 1
        assert (result.state, result.result) == ("PROGRESS", 1)

    def test_that_of_another_task_is_kept_beside_it(self, declare: Callable[..., Any]) -> None:
        other = tasks.add.apply_async((1, 2), countdown=100)

        def marks(self: Any) -> None:
            with transaction.atomic():
                self.update_state(task_id=other.id, state="SEEN", meta={"by": "me"})
                transaction.set_rollback(True)

        declare(marks, bind=True).delay()
        run_jobs()
        assert (other.state, other.result) == ("SEEN", {"by": "me"})
        run_all()
        assert (other.state, other.get(timeout=PATIENCE)) == ("SUCCESS", 3)

    def test_one_that_is_sent_in_the_same_transaction_has_one_too(
        self, declare: Callable[..., Any]
    ) -> None:
        sent = []

        def sends(self: Any) -> None:
            with transaction.atomic():
                sent.append(tasks.add.apply_async((1,), countdown=100))
                self.update_state(task_id=sent[0].id, state="SENT")

        declare(sends, bind=True).delay()
        run_jobs()
        assert sent[0].state == "SENT"

    def test_arguments_of_a_retry_are_kept_beside_it(self, declare: Callable[..., Any]) -> None:
        seen = []

        def again(self: Any, n: int) -> None:
            seen.append(n)
            self.update_state(state="PROGRESS", meta=n)
            self.backend.store_result(self.request.id, n, "MORE")
            if n < 3:
                raise self.retry(countdown=9, args=[n + 1])

        result = declare(again, bind=True).delay(0)
        while not result.ready():
            tasks.add.backend.store_result(result.id, None, "FROM OUTSIDE")
            run_all()
        assert seen == [0, 1, 2, 3]

    def test_the_task_of_a_call_and_of_apply_has_no_job(self, declare: Callable[..., Any]) -> None:
        def reports(self: Any) -> int:
            self.update_state(state="PROGRESS")
            return 1

        task = declare(reports, bind=True)
        assert (task(), task.apply().get()) == (1, 1)

    def test_a_handler_that_keeps_its_own_checkpoint_is_left_alone(
        self, declare: Callable[..., Any]
    ) -> None:
        def walks() -> None:
            run = current_run()
            assert run is not None
            run.checkpoint([1, 2])
            raise ValueError("after it")

        result = declare(walks).delay()
        run_jobs()
        assert (result.state, result.result.args) == ("FAILURE", ("after it",))


class TestStoreResult:
    def test_it_replaces_the_result_of_an_ended_task(self) -> None:
        result = tasks.add.delay(1, 2)
        run_jobs()
        celery_app.backend.store_result(result.id, {"z": math.nan}, "SUCCESS")
        assert repr(tasks.add.AsyncResult(result.id).get(timeout=PATIENCE)) == "{'z': nan}"
        celery_app.backend.store_result(result.id, KeyError("k"), "FAILURE", traceback="where")
        failed = tasks.add.AsyncResult(result.id)
        assert (failed.state, failed.result.args, failed.traceback) == ("FAILURE", ("k",), "where")

    @pytest.mark.parametrize("task_id", ["by nobody", "8a5a6c0e-1111-4b0e-9d8c-2f3a4b5c6d7e"])
    def test_an_id_without_a_job_is_refused(self, task_id: str) -> None:
        with pytest.raises(JobsError, match="no job has the id"):
            celery_app.backend.store_result(task_id, {"z": 1}, "SUCCESS")
        with pytest.raises(JobsError, match="no job has the id"):
            AbortableAsyncResult(task_id, app=celery_app).abort()

    def test_what_is_no_json_is_refused(self) -> None:
        from kombu.exceptions import EncodeError

        result = tasks.add.delay(1, 2)
        with pytest.raises(EncodeError):
            celery_app.backend.store_result(result.id, {1}, "SUCCESS")


class TestAborting:
    def test_a_running_task_sees_that_it_is_aborted(self, declare: Callable[..., Any]) -> None:
        def export(self: Any) -> str:
            for round in range(100):
                if self.is_aborted():
                    return f"aborted in {round}"
                if round == 3:
                    result = AbortableAsyncResult(self.request.id, app=celery_app)
                    in_a_thread(result.abort).join(PATIENCE)
            return "to the end"

        result = declare(export, bind=True, base=AbortableTask).delay()
        run_all()
        assert result.get(timeout=PATIENCE) == "aborted in 4"

    def test_one_that_waits_sees_it_when_it_starts(self, declare: Callable[..., Any]) -> None:
        def export(self: Any) -> bool:
            return bool(self.is_aborted())

        task = declare(export, bind=True, base=AbortableTask)
        result, other = task.delay(), task.apply_async(task_id="by the caller")
        result.abort()
        other.abort()
        assert (result.state, result.is_aborted(), other.state) == ("ABORTED", True, "ABORTED")
        run_all()
        assert (result.get(timeout=PATIENCE), other.get(timeout=PATIENCE)) == (True, True)

    def test_with_a_worker(self, start_worker: Any) -> None:
        result = AbortableAsyncResult(tasks.export.delay(PATIENCE).id, app=celery_app)
        start_worker(DJANGO_SETTINGS_MODULE="tests.contrib.celery.project.settings")
        until(lambda: (result.state, result.result) == ("PROGRESS", 1))
        result.abort()
        assert result.get(timeout=PATIENCE) == "aborted"


class TestHooks:
    @pytest.mark.parametrize("how", ["success", "retry", "failure"])
    def test_they_read_the_state_that_the_task_has_then(
        self, how: str, declare: Callable[..., Any]
    ) -> None:
        seen = []

        class Looks(Task):  # type: ignore[misc]
            def looks(self, *args: Any, **kwargs: Any) -> None:
                result = self.AsyncResult(self.request.id)
                seen.append((result.state, repr(result.result)))

            on_success = on_retry = on_failure = after_return = looks

        def works(self: Any) -> float:
            self.update_state(state="PROGRESS")
            if how == "retry":
                raise self.retry(countdown=9, exc=KeyError("k"))
            return math.nan if how == "success" else {}["k"]

        declare(works, bind=True, base=Looks).delay()
        run_jobs()
        ends = {"success": "nan", "retry": "KeyError('k')", "failure": "KeyError('k')"}
        calls = 1 if how == "retry" else 2  # after_return is not called for a retry
        assert seen == [(how.upper(), ends[how])] * calls


class TestStarted:
    @pytest.mark.parametrize("tracked", [True, False])
    def test_a_running_task_is_started_if_it_is_tracked(
        self, tracked: bool, declare: Callable[..., Any]
    ) -> None:
        seen = []

        def looks(self: Any) -> None:
            result = self.AsyncResult(self.request.id)
            seen.append((result.state, result.result))
            if not self.request.retries:
                raise self.retry(countdown=1)

        declare(looks, bind=True, track_started=tracked).delay()
        run_all()
        if tracked:
            assert [state for state, _ in seen] == ["STARTED", "STARTED"]
            assert all(result.keys() == {"pid", "hostname"} for _, result in seen)
        else:
            assert seen == [("PENDING", None), ("RETRY", None)]


class TestChildren:
    def test_what_a_task_sends_are_its_children(self, declare: Callable[..., Any]) -> None:
        def sends(fails: bool) -> str:
            tasks.add.delay(1, 1)
            group(tasks.add.s(2, 2), tasks.add.s(3, 3)).delay()
            if fails:
                raise ValueError("after it")
            return "sent"

        task = declare(sends)
        result, failed = task.delay(False), task.delay(True)
        run_all()
        assert [value for _, value in result.collect()] == ["sent", 2, [4, 6], 4, 6]
        assert len(failed.children) == 2
        assert result.children[0].children == []

    def test_the_next_step_of_a_chain_is_a_child(self) -> None:
        last = chain(tasks.add.s(1, 1), tasks.add.s(2), tasks.add.s(3)).delay()
        body = chord([tasks.add.s(1, 1)], tasks.collect.s()).delay()
        run_all()
        first = tasks.add.AsyncResult(last.parent.parent.id)
        assert [value for _, value in first.collect()] == [2, 4, 7]
        assert (last.children, body.children) == ([], [])


class TestExtended:
    @pytest.fixture
    def extended(self, settings: Any) -> Any:
        before = celery_app.conf.result_extended
        celery_app.conf.result_extended = True
        yield
        celery_app.conf.result_extended = before

    @pytest.mark.usefixtures("extended")
    def test_the_row_has_the_fields_of_result_extended(self) -> None:
        result = tasks.add.apply_async((1,), {"y": 2}, queue="emails")
        assert (result.name, result.args) == (None, None)
        any_number = tasks.collect.delay([date(2026, 5, 1)], label="x")
        step = chain(tasks.add.s(1, 1), tasks.add.s(2)).delay()
        retried = tasks.count_down.delay(1)
        run_all()
        assert (result.name, result.args, result.kwargs) == (tasks.add.name, [1], {"y": 2})
        assert (result.queue, result.retries) == ("emails", 0)
        assert result.worker.startswith("jobworker@")
        assert any_number.args == [[date(2026, 5, 1)]]
        assert step.args == [2, 2]
        assert (retried.args, retried.retries) == ([0], 1)

    def test_without_it_there_are_none_as_in_celery(self) -> None:
        result = tasks.add.delay(1)
        run_all()
        assert result.get(timeout=PATIENCE) == 1
        fields = result.name, result.args, result.kwargs, result.worker, result.queue
        assert (*fields, result.retries) == (None,) * 6
        assert result.date_done is not None


class TestAsync:
    def test_a_coroutine_is_told_what_to_write(self) -> None:
        result = tasks.add.delay(1, 2)
        run_all()

        async def read() -> Any:
            for ask in (lambda: result.state, lambda: result.get(timeout=PATIENCE), result.ready):
                with pytest.raises(SynchronousOnlyOperation, match=r"await sync_to_async\("):
                    ask()
            value = await sync_to_async(result.get)(timeout=PATIENCE)
            state = await sync_to_async(lambda: result.state)()
            await sync_to_async(connections.close_all)()
            return value, state

        assert asyncio.run(read()) == (3, "SUCCESS")
