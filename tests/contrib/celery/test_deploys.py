"""A message that one version of the code has sent runs in another one as in Celery."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import chain

from django_jobs import registry
from django_jobs.api.editing import edit_job
from django_jobs.contrib.celery.beat.declared import schedule_of
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.contrib.celery.project import celery_app, tasks
from tests.contrib.celery.running import run_all

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]

NAME = "project.deployed"


def old(order: Any, note: str = "n") -> list[Any]:
    return [order, note]


def renamed(order_id: Any, text: str = "n") -> list[Any]:
    return [order_id, text]


def added_in_front(dry_run: Any = False, order: Any = None, note: str = "n") -> list[Any]:
    return [dry_run, order, note]


def any_args(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


def positional_only(a: Any, /, note: str = "n") -> list[Any]:
    return [a, note]


def swapped(note: Any, order: Any = "o") -> list[Any]:
    return [note, order]


def too_few() -> None:
    raise AssertionError


def named_like_the_pair(args: Any, kwargs: Any = "n") -> list[Any]:
    return [args, kwargs]


@functools.wraps(old)
def decorated(*args: Any, **kwargs: Any) -> list[Any]:
    return ["decorated", *old(*args, **kwargs)]


VERSIONS = [
    *(old, renamed, added_in_front, any_args, positional_only, swapped, too_few),
    *(named_like_the_pair, decorated),
]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "two"), {}),
    (({"b": 1, "a": [2]}, None), {}),
    (([1], {"x": 1}), {}),
    ((1,), {"note": "two"}),
    ((), {"order": 1}),
]


def in_celery(version: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return version(*args, **kwargs)
    except TypeError:
        return "TypeError"


def outcome(job: Job | None = None) -> Any:
    job = job or Job.objects.filter(job_type=NAME).latest("pk")
    if job.status == "dead":
        assert "PayloadError" not in job.last_error
        return job.last_error.partition(":")[0]
    return job.result


@pytest.fixture
def deploy(project: None) -> Iterator[Callable[..., Any]]:
    """Declares the task as a version of the code has it, in place of the one before."""

    def deploy(version: Callable[..., Any], **options: Any) -> Any:
        forget()
        options = {"name": NAME, "lazy": False, "shared": False, **options}
        return celery_app.task(**options)(version)

    def forget() -> None:
        celery_app.tasks.pop(NAME, None)
        registry.unregister(NAME)

    yield deploy
    forget()


@pytest.mark.parametrize("runs", VERSIONS)
@pytest.mark.parametrize("sends", VERSIONS)
def test_a_call_by_position_runs_in_other_code(
    sends: Any, runs: Any, deploy: Callable[..., Any]
) -> None:
    task = deploy(sends, typing=False)
    for args, kwargs in CALLS:
        task.apply_async(args, kwargs)
    deploy(runs)
    run_jobs()
    jobs = Job.objects.filter(job_type=NAME).order_by("pk")
    for job, (args, kwargs) in zip(jobs, CALLS, strict=True):
        assert outcome(job) == in_celery(runs, args, kwargs), (args, kwargs)


@pytest.mark.parametrize(("sends", "runs"), [(old, renamed), (renamed, any_args), (any_args, old)])
def test_a_step_of_a_chain_and_a_retry_run_in_other_code(
    sends: Any, runs: Any, deploy: Callable[..., Any]
) -> None:
    task = deploy(sends)
    chain(tasks.add.s(1, 1), task.s("two")).delay()
    deploy(runs)
    run_all()
    assert outcome() == runs(2, "two")


def test_the_arguments_of_a_retry_run_in_other_code(deploy: Callable[..., Any]) -> None:
    def once(self: Any, order: Any, note: str = "n") -> None:
        raise self.retry(args=[order + 1, "again"], countdown=60)

    deploy(once, bind=True, max_retries=1).delay(1)
    run_jobs()
    deploy(renamed)
    run_all()
    assert outcome() == [2, "again"]


def test_an_entry_of_beat_runs_in_other_code(deploy: Callable[..., Any]) -> None:
    deploy(old)
    entry = {"task": NAME, "schedule": 60, "args": [1], "kwargs": {"note": "x"}}
    payload = schedule_of(celery_app, "nightly", entry)["payload"]
    for version in (old, any_args):
        deploy(version)
        job_type = registry.get(NAME)
        job_type.insert(job_type.bind(**payload))
        run_jobs()
        assert outcome() == version(1, note="x")


def test_an_argument_that_was_edited_by_name_is_the_one_that_runs(
    deploy: Callable[..., Any],
) -> None:
    job_of = {}
    task = deploy(old)
    for name in ("changed", "left out", "renamed"):
        task.apply_async((1, "two"), countdown=60)
        job_of[name] = Job.objects.latest("pk").pk
    assert Job.objects.get(pk=job_of["changed"]).payload == {"order": 1, "note": "two"}
    edit_job(job_of["changed"], payload={"order": 5, "note": "two"})
    edit_job(job_of["left out"], payload={"order": 6})
    deploy(renamed)
    edit_job(job_of["renamed"], payload={"order_id": 7})
    run_all()
    results = {name: Job.objects.get(pk=pk).result for name, pk in job_of.items()}
    assert results == {"changed": [5, "two"], "left out": [6, "n"], "renamed": [7, "n"]}
