"""Tasks are declared while Django loads apps, and with the options of their backend."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django
import pytest
from django.core.checks import CheckMessage
from django.test import override_settings

from django_jobs import Backoff, registry
from django_jobs.backend import JobsBackend, JobTask, declared, task
from django_jobs.backend.interface import InvalidTask, Task, task_backends
from django_jobs.domain.options import TASK_OPTIONS, TASK_USING_OPTIONS
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.app import tasks


def test_a_task_takes_each_option_of_a_job_type_and_of_a_request() -> None:
    assert {one.name for one in fields(JobTask)} >= {*TASK_OPTIONS, *TASK_USING_OPTIONS}
    assert registry.get("tests.app.tasks.limited").on_cancel == "ask"
    assert tasks.limited.using(**dict.fromkeys(TASK_USING_OPTIONS)) == tasks.limited


@pytest.mark.parametrize("option", ["max_attemps", "timeout", "func", "takes_context", "queue"])
@pytest.mark.parametrize("value", [None, 5])
def test_using_takes_no_other_option(option: str, value: int | None) -> None:
    with pytest.raises(TypeError, match=f"there is no option '{option}'"):
        tasks.limited.using(**{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("queue", "did you mean 'queue_name'?"),
        ("queue_nme", "did you mean 'queue_name'?"),
        ("run_at", "did you mean 'run_after'?"),
        ("delay", "did you mean 'run_after'?"),
        ("countdown", "did you mean 'run_after'?"),
        ("eta", "did you mean 'run_after'?"),
        ("max_retries", "did you mean 'max_attempts'?"),
        ("name", "known are: priority, queue_name"),
        ("colour", "known are: priority, queue_name"),
        ("rate_limit", "name a resource"),
    ],
)
def test_an_unknown_option_of_a_task_is_refused_with_the_name_of_django(
    option: str, hint: str
) -> None:
    for where, call in (
        ("tests.app.tasks.limited.using()", tasks.limited.using),
        ("@task early", lambda **options: task(**options)(early)),
    ):
        with pytest.raises(TypeError) as refused:
            call(**{option: 5})  # type: ignore[arg-type]
        problem = f"{where}: there is no option {option!r}; {hint}"
        assert str(refused.value).startswith(problem)


def test_an_option_of_a_declaration_is_no_option_of_a_request() -> None:
    with pytest.raises(TypeError, match=r"there is no option 'timeout'; it is an option of @task$"):
        tasks.limited.using(timeout=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("function", [[1], 5, print, "emails"])
def test_only_a_function_is_a_task(function: Any) -> None:
    for decorate in (task, task(timeout=5)):
        with pytest.raises(InvalidTask, match="defined at a module level"):
            decorate(function)


def early() -> None: ...


EARLY = """
import sys
from django_jobs.backend import task

@task
def early(): ...

assert "django_jobs.models" not in sys.modules
"""
PROGRAM = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["early_app", "django_jobs"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}},
    TASKS={"default": {"BACKEND": "django_jobs.backend.JobsBackend"}},
    USE_TZ=True,
)
django.setup()
from django_jobs import registry
assert registry.names() == ["early_app.early", "early_app.tasks.late"], registry.names()
"""


def test_a_task_is_declared_before_the_models_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "early_app").mkdir()
    (tmp_path / "early_app" / "__init__.py").write_text(EARLY)
    late = "from django_jobs.backend import task\n@task\ndef late(): ...\n"
    (tmp_path / "early_app" / "tasks.py").write_text(late)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, env={**os.environ, "PYTHONPATH": path}
    )


def test_a_task_declares_its_job_type() -> None:
    limited = registry.get("tests.app.tasks.limited")
    assert (limited.timeout, limited.resources, limited.queue) == (60, ("tasks",), "bulk")
    assert limited.max_attempts == 1
    assert registry.get("tests.app.tasks.second_time").max_attempts == 2


def test_the_options_of_the_backend_are_the_defaults() -> None:
    setting = {
        "BACKEND": "django_jobs.backend.JobsBackend",
        "OPTIONS": {"max_attempts": 3, "backoff": Backoff.fixed(5)},
    }
    try:
        with override_settings(TASKS={"default": setting}):
            assert isinstance(task(max_attempts=7)(early), JobTask)
        declaration = registry.get(f"{__name__}.early")
        assert (declaration.max_attempts, declaration.backoff) == (7, Backoff.fixed(5))
    finally:
        declared.forget_module(__name__)


def test_an_option_that_cannot_work_is_an_invalid_task() -> None:
    with pytest.raises(InvalidTask, match="timeout is a positive number"):
        task(timeout=-1)(early)
    assert registry.find(f"{__name__}.early") is None


REQUEST: dict[str, Any] = {
    "run_after": datetime(2030, 1, 1, tzinfo=UTC),
    "idempotency_key": "once",
    "key_scope": "tenant",
    "unique_for": 60,
    "on_duplicate": "raise",
    "headers": {"source": "import"},
    "concurrency_key": "account:7",
}


@pytest.mark.parametrize("option", REQUEST)
def test_an_option_of_a_request_is_refused_at_the_declaration(option: str) -> None:
    with pytest.raises(InvalidTask, match=rf"{option} .* early\.using\({option}=\.\.\.\)"):
        task(**{option: REQUEST[option]})(early)
    assert registry.find(f"{__name__}.early") is None


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django's decorator takes no options")
def test_djangos_decorator_refuses_them_too() -> None:
    from django.tasks import task as task_of_django  # type: ignore[attr-defined]

    with pytest.raises(InvalidTask, match=r"early\.using\(idempotency_key=\.\.\.\)"):
        task_of_django(idempotency_key="once")(early)


IMMEDIATE = {
    "BACKEND": f"{Task.__module__.partition('.base')[0]}.backends.immediate.ImmediateBackend"
}
JOBS = {"BACKEND": "django_jobs.backend.JobsBackend"}


def test_a_task_of_another_backend_is_refused_because_no_worker_knows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with override_settings(TASKS={"default": IMMEDIATE, "jobs": JOBS}):
        monkeypatch.setitem(globals(), "early", task(early))
        with pytest.raises(InvalidTask, match=r"declared for the backend 'default'.*'jobs'"):
            early.using(backend="jobs")  # type: ignore[attr-defined]
    assert registry.find(f"{__name__}.early") is None


@pytest.mark.django_db
def test_a_request_may_go_to_another_backend_with_the_same_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"OPTIONS": {"max_attempts": 3}}
    setting = {"default": JOBS | options, "bulk": JOBS | options | {"QUEUES": ["bulk"]}}
    try:
        with override_settings(TASKS=setting):
            monkeypatch.setitem(globals(), "early", made := task(early))
            result = made.using(backend="bulk", queue_name="bulk").enqueue()
            (job,) = Job.objects.all()
            assert (job.queue, job.max_attempts, result.backend) == ("bulk", 3, "bulk")
            (run,) = run_jobs()
            assert run.outcome == "succeeded"
            for backend in task_backends.all():
                assert backend.get_result(result.id).status == "SUCCESSFUL"
            with pytest.raises(InvalidTask, match=r"default.*is not valid"):
                made.using(backend="bulk")
    finally:
        declared.forget_module(__name__)


def test_one_to_a_backend_with_other_options_is_refused_because_workers_know_one_declaration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = {"default": JOBS, "patient": JOBS | {"OPTIONS": {"max_attempts": 9}}}
    try:
        with override_settings(TASKS=setting):
            monkeypatch.setitem(globals(), "early", made := task(early))
            with pytest.raises(
                InvalidTask, match=r"'default'.*OPTIONS.*'patient': declare it with"
            ):
                made.using(backend="patient")
    finally:
        declared.forget_module(__name__)


@pytest.mark.parametrize(
    "options", [{"retries": 3}, {"queue": "emails"}, {"timeout": -1}, ["timeout"], 5]
)
def test_a_declaration_names_the_setting_whose_options_no_task_has(options: Any) -> None:
    named = pytest.raises(InvalidTask, match=r"^TASKS\['default'\]\[\"OPTIONS\"\]")
    with override_settings(TASKS={"default": JOBS | {"OPTIONS": options}}), named:
        task(early)
    assert declared.find(f"{__name__}.early") is None


@pytest.mark.django_db
def test_a_task_that_was_declared_before_the_setting_changed_keeps_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with override_settings(TASKS={"default": IMMEDIATE}):
        monkeypatch.setitem(globals(), "early", task(early))
    try:
        once = early.using(idempotency_key="once")  # type: ignore[attr-defined]
        assert once.enqueue().id == once.enqueue().id
        assert once.enqueue().id != early.enqueue().id  # type: ignore[attr-defined]
    finally:
        declared.forget_module(__name__)


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django's decorator takes no options")
def test_djangos_decorator_takes_the_options() -> None:
    from django.tasks import task as task_of_django  # type: ignore[attr-defined]

    try:
        assert task_of_django(max_attempts=7)(early).max_attempts == 7
        assert registry.get(f"{__name__}.early").max_attempts == 7
    finally:
        declared.forget_module(__name__)


def test_the_decorator_of_django_tasks_makes_the_same_tasks() -> None:
    from django_tasks import task as task_of_package

    try:
        made = task_of_package(priority=5)(early)
        assert isinstance(made, JobTask | Task)
        assert registry.get(f"{__name__}.early").priority == 5
    finally:
        declared.forget_module(__name__)


def problems(**params: object) -> list[CheckMessage]:
    return JobsBackend("default", params).check()


def test_the_checks_name_unknown_options_and_queues() -> None:
    assert task_backends["default"].check() == []
    for options, problem in (
        ({"max_atempts": 1}, ": there is no option 'max_atempts'; did you mean 'max_attempts'?"),
        ({"retries": 1}, ": there is no option 'retries'; did you mean 'max_attempts'?"),
        ({"queue": "emails"}, ": there is no option 'queue'; known are: max_attempts"),
        ({"tags": (), "unique_for": 5}, ": there is no option 'unique_for'; it is an option of"),
        ({"max_attempts": 0}, ": max_attempts is a whole number from 1 to"),
        ({"timeout": "soon"}, ": timeout is a positive number of seconds"),
        ({"backoff": 5}, ": backoff is a Backoff, such as"),
        ({"retry_on": {OSError: 1}}, ": retry_on takes exception classes, not {"),
        ({"tags": {"a": 1}}, ': tags are texts, such as ["vip"], not {'),
        ({"timeout": 5, "silence_timeout": 9}, ": silence_timeout=9 never acts"),
        (["timeout"], " is a dict of options, not ['timeout']"),
        (None, " is a dict of options, not None"),
    ):
        (found,) = problems(OPTIONS=options)
        assert found.id == "django_jobs.E018"
        assert found.msg.startswith(f"TASKS['default'][\"OPTIONS\"]{problem}")
    (queue,) = problems(QUEUES=["default", "nowhere"])
    assert (queue.id, "'nowhere'" in queue.msg) == ("django_jobs.W003", True)


def test_the_checks_ask_for_the_app_and_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.apps import apps
    from django.db import connections

    monkeypatch.setattr(apps, "is_installed", lambda name: False)
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    assert [one.id for one in problems()] == ["django_jobs.E016", "django_jobs.E017"]


def test_a_copy_has_its_own_options_only() -> None:
    copy = tasks.total.using(max_attempts=3).using(priority=2)
    assert (copy.max_attempts, copy.priority) == (3, 2)
    assert (tasks.total.max_attempts, tasks.total.priority) == (None, 0)
