"""The exceptions that ``get()`` raises: of the class and with the ``args`` that Celery's serializer
keeps, and never one that ends more than its reader."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.utils.serialization import UnpickleableExceptionWrapper
from django.contrib.auth.models import Permission, User

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Progress, Run
from django_jobs.testing import run_jobs
from tests.contrib.celery.project import tasks
from tests.contrib.celery.running import run_all
from tests.patience import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


class TwoArguments(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.status = status


class OneText(Exception):
    """Not made again from its ``args``, so that Celery wraps it."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")


class Outer:
    class Inner(ValueError):
        pass


RAISED = {
    "two arguments": (TwoArguments(503, {"a": [1]}), None),
    "a key": (KeyError("x"), None),
    "an error of the system": (FileNotFoundError(2, "No such file", "f"), (2, "No such file")),
    "a number": (ValueError(42), None),
    "nothing": (ValueError(), None),
    "a dict": (RuntimeError({"a": None}), None),
    "a nested class": (Outer.Inner("z"), None),
    "what is no JSON": (ValueError({1}, object), ("{1}", "<class 'object'>")),
    "NUL and no number": (ValueError("\x00", float("inf")), None),
    "a long text": (ValueError("x" * 20_000), None),
    "an empty text": (ValueError(""), None),
    "a tuple": (ValueError((1, 2)), ([1, 2],)),
    "text with a detail": (ValueError("DETAIL:  Key (id)=(1) exists."), None),
    "several": (TypeError("a", 1, None, [2]), None),
}


def raised_by(declare: Callable[..., Any], error: BaseException, **options: Any) -> Any:
    def fails() -> None:
        raise error

    return declare(fails, **options)


@pytest.mark.parametrize("what", RAISED)
def test_an_exception_comes_back_with_its_class_and_args(
    what: str, declare: Callable[..., Any]
) -> None:
    error, args = RAISED[what]
    task = raised_by(declare, error)
    result, step = task.delay(), chain(task.s(), tasks.add.si(1)).delay()
    run_all()
    for one in (result, step):
        with pytest.raises(type(error)) as read:
            one.get(timeout=PATIENCE)
        assert type(read.value) is type(error)
        assert read.value.args == (error.args if args is None else args)
        assert one.state == "FAILURE"
    assert "raise error" in result.traceback
    assert getattr(read.value, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("header", ["one", "two"])
@pytest.mark.parametrize("immutable", [True, False])
def test_the_body_of_a_chord_tells_which_task_has_failed(
    header: str, immutable: bool, declare: Callable[..., Any]
) -> None:
    if immutable and header == "one":
        pytest.skip("laid out as a chain, whose end has the exception itself")
    fails = raised_by(declare, TwoArguments(503, {})).s()
    tasks_before = [fails] if header == "one" else [tasks.add.s(1), fails]
    body = chord(tasks_before, tasks.collect.si(1) if immutable else tasks.collect.s()).delay()
    run_all()
    result = tasks.add.AsyncResult(body.id)
    assert (result.state, type(result.result)) == ("FAILURE", ChordError)
    (text,) = result.result.args
    assert text == f"Dependency {body.parent[-1].id} raised TwoArguments(503, {{}})"


def test_one_that_its_args_do_not_make_is_wrapped_as_in_celery(
    declare: Callable[..., Any],
) -> None:
    result = raised_by(declare, OneText(1, 2)).delay()
    run_all()
    with pytest.raises(UnpickleableExceptionWrapper) as read:
        result.get(timeout=PATIENCE)
    assert read.value.exc_cls_name == "OneText"
    assert list(read.value.exc_args) == ["1: 2"]


def test_a_class_whose_module_is_not_imported_is_made(
    declare: Callable[..., Any], monkeypatch: Any, tmp_path: Any
) -> None:
    (tmp_path / "shop_errors.py").write_text("class Refused(Exception): pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = raised_by(declare, importlib.import_module("shop_errors").Refused(503, "no")).delay()
    run_all()
    del sys.modules["shop_errors"]
    with pytest.raises(Exception, match="503") as read:
        result.get(timeout=PATIENCE)
    assert (type(read.value).__name__, read.value.args) == ("Refused", (503, "no"))
    Progress.objects.all().delete()  # as of a row that was written before args were kept
    with pytest.raises(Exception, match="503") as read:
        tasks.add.AsyncResult(result.id).get(timeout=PATIENCE)
    assert type(read.value).__name__ == "Refused"


@pytest.mark.parametrize("what", ["a number", "a nested class", "a key", "a long text"])
def test_a_row_without_args_has_its_class_and_its_text(
    what: str, declare: Callable[..., Any]
) -> None:
    error, _ = RAISED[what]
    result = raised_by(declare, error).delay()
    run_all()
    Progress.objects.all().delete()
    with pytest.raises(type(error)) as read:
        result.get(timeout=PATIENCE)
    assert read.value.args == (Run.objects.get().error_message,)


def test_args_that_are_too_large_for_the_row_leave_its_text(declare: Callable[..., Any]) -> None:
    result = raised_by(declare, ValueError("x" * 1_500_000)).delay()
    run_all()
    with pytest.raises(ValueError, match="characters left out"):
        result.get(timeout=PATIENCE)


ENDS = {
    "a number": (SystemExit(2), "Worker exited prematurely: exitcode 2."),
    "nothing": (SystemExit(), "Worker exited prematurely: exitcode 0."),
    "a text": (SystemExit("no disk"), "Worker exited prematurely: exitcode 1."),
    "an interrupt": (KeyboardInterrupt("k"), "Worker exited prematurely: KeyboardInterrupt."),
    "a cancel": (asyncio.CancelledError("x"), "Worker exited prematurely: CancelledError."),
    "an exit": (GeneratorExit(), "Worker exited prematurely: GeneratorExit."),
    "one of the project's": (
        type("Stop", (BaseException,), {"__module__": __name__})("x"),
        "Worker exited prematurely: Stop.",
    ),
}


@pytest.mark.parametrize("what", ENDS)
def test_no_base_exception_is_raised_in_the_reader(
    what: str, declare: Callable[..., Any], monkeypatch: Any
) -> None:
    error, text = ENDS[what]
    monkeypatch.setitem(globals(), "Stop", type(error))
    task = raised_by(declare, error)
    results = [
        task.delay(),
        group(task.s(), task.s()).delay(),
        chain(task.s(), tasks.add.s()).delay(),
        chord([task.s()], tasks.collect.s()).delay(),
    ]
    while Job.objects.filter(status="ready").exists():
        try:
            run_all()
        except BaseException as raised:  # which ends a test as it ends a reader
            if raised is not error:
                raise
    for result in results:
        with pytest.raises(Exception, match="prematurely") as read:
            result.get(timeout=PATIENCE)
        assert type(read.value) is WorkerLostError
    assert (results[0].state, results[0].result.args) == ("FAILURE", (text,))


def test_a_time_limit_is_in_the_args(declare: Callable[..., Any]) -> None:
    def naps() -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            time.sleep(0.01)

    def dozes() -> None:
        naps()

    limited, fraction = declare(naps, time_limit=1), declare(dozes, time_limit=0.25)
    results = [limited.delay(), fraction.delay()]
    run_jobs()
    for result, seconds in zip(results, (1, 0.25), strict=True):
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=PATIENCE)
        assert json.dumps(result.result.args) == json.dumps([seconds])


class TestRetries:
    @pytest.fixture
    def retried(self, declare: Callable[..., Any]) -> Callable[..., Any]:
        def declared(error: Any = None, **options: Any) -> Any:
            def again(self: Any) -> None:
                raise self.retry(countdown=30, exc=error)

            return declare(again, bind=True, **options)

        return declared

    @pytest.mark.parametrize("what", RAISED)
    def test_the_result_is_the_exception_that_it_was_given(
        self, what: str, retried: Callable[..., Any]
    ) -> None:
        error, args = RAISED[what]
        result = retried(error).delay()
        run_jobs()
        assert (result.state, type(result.result)) == ("RETRY", type(error))
        assert result.result.args == (error.args if args is None else args)
        assert "Traceback" in result.traceback

    def test_without_one_there_is_none(self, retried: Callable[..., Any]) -> None:
        result = retried().delay()
        run_jobs()
        assert (result.state, result.result) == ("RETRY", None)

    def test_it_is_that_of_the_last_attempt(self, declare: Callable[..., Any]) -> None:
        seen = []

        def again(self: Any, text: str = "") -> None:
            seen.append(self.AsyncResult(self.request.id).result)
            error = ValueError(f"attempt {self.request.retries}", text)
            raise self.retry(countdown=30, exc=error, args=[text + "x"], max_retries=2)

        result = declare(again, bind=True).delay()
        run_all()
        assert [one and one.args for one in seen] == [
            None,
            ("attempt 0", ""),
            ("attempt 1", "x"),
        ]
        with pytest.raises(ValueError, match="attempt 2"):
            result.get(timeout=PATIENCE)
        assert result.result.args == ("attempt 2", "xx")

    def test_one_of_which_nothing_is_kept_has_celerys_own(
        self, retried: Callable[..., Any]
    ) -> None:
        result = retried(ValueError("why"), ignore_result=True).delay()
        run_jobs()
        assert result.state == "RETRY"
        assert type(result.result).__module__ == "celery.exceptions"

    @pytest.mark.parametrize("expires", [20, 0.001])
    def test_one_that_expires_before_it_is_revoked(
        self, expires: float, retried: Callable[..., Any]
    ) -> None:
        result = retried(ValueError("why")).apply_async(expires=expires)
        run_all()
        with pytest.raises(TaskRevokedError) as read:
            result.get(timeout=PATIENCE)
        assert (result.state, read.value.args) == ("REVOKED", ("expired",))


def test_a_revoked_task_says_so_as_in_celery() -> None:
    result = tasks.add.apply_async((1,), countdown=100)
    result.revoke()
    with pytest.raises(TaskRevokedError) as read:
        result.get(timeout=PATIENCE)
    assert (result.state, read.value.args) == ("REVOKED", ("revoked",))
    waiting = tasks.add.apply_async((1,), countdown=100)
    job_operations.cancel([Job.objects.latest("pk").pk], reason="a mistake")
    assert waiting.result.args == ("revoked",)


@pytest.mark.parametrize("value", ["a secret", "\x00 a secret"])
@pytest.mark.parametrize("hidden", [True, False])
def test_the_admin_hides_it_from_who_may_not_see_errors(
    hidden: bool, value: str, declare: Callable[..., Any], client: Any
) -> None:
    raised_by(declare, ValueError(value)).delay()
    run_all()
    user = User.objects.create_user("operator", is_staff=True)
    names = ["view_job", "view_run", "view_job_payload", *([] if hidden else ["view_job_error"])]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    client.force_login(user)
    page = client.get(f"/admin/django_jobs/job/{Job.objects.get().pk}/change/")
    assert page.status_code == 200
    assert ("a secret" in page.text) is not hidden
