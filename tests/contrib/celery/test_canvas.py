"""Chains, groups and chords of Celery are runs of workflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import chain, chord, chunks, group
from celery.canvas import Signature
from celery.result import AsyncResult
from pytest_django import Settings

from django_jobs import EnqueueError, ResultNotStored
from django_jobs.models import Job, WorkflowRun
from tests.contrib.celery.project import celery_app, tasks
from tests.contrib.celery.running import run_all
from tests.patience import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]

CASES: dict[str, Callable[[], Signature]] = {
    "a chain": lambda: chain(tasks.add.s(1, 1), tasks.add.s(10), tasks.add.s(y=100)),
    "an immutable step": lambda: tasks.add.s(1, 1) | tasks.add.si(5, 5) | tasks.add.s(1),
    "a group": lambda: group(tasks.add.s(n, n) for n in range(4)),
    "a group of one": lambda: group([tasks.add.s(1, 1)]),
    "a chord": lambda: chord([tasks.add.s(n, n) for n in range(4)], tasks.collect.s()),
    "a chord of one": lambda: chord([tasks.add.s(1, 1)], tasks.collect.s(2)),
    "a group and then": lambda: group(tasks.add.s(1, 1), tasks.add.s(2, 2)) | tasks.collect.s(),
    "a chain of all": lambda: chain(
        tasks.add.s(1, 1),
        group(tasks.add.s(10), tasks.add.s(20)),
        tasks.collect.s(),
        tasks.collect.s("end"),
    ),
    "group after group": lambda: chain(
        group(tasks.add.s(1, 1), tasks.add.s(2, 2)),
        group(tasks.collect.s("a"), tasks.collect.s("b")),
    ),
    "chains in a group": lambda: group(
        chain(tasks.add.s(1, 1), tasks.add.s(1)), chain(tasks.add.s(2, 2), tasks.add.s(2))
    ),
    "a chord of chains": lambda: chord(
        [tasks.add.s(1, 1) | tasks.add.s(1), tasks.add.s(5, 5)],
        tasks.collect.s() | tasks.collect.s("end"),
    ),
    "a map": lambda: tasks.collect.map([1, 2, 3]),
    "a starmap": lambda: tasks.add.starmap([(1, 2), (3, 4)]),
    "chunks": lambda: chunks(tasks.add.s(), [(n, n) for n in range(5)], 2),
    "any number of arguments": lambda: tasks.add.s(1, 1) | tasks.total.s(3, discount=1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_canvas_gives_what_celery_gives(name: str) -> None:
    result = CASES[name]().apply_async()
    run_all()
    assert not Job.objects.exclude(status="succeeded").exists()
    celery_app.conf.task_always_eager = True
    try:
        expected = CASES[name]().apply_async().get(disable_sync_subtasks=False)
    finally:
        celery_app.conf.task_always_eager = False
    assert result.get(timeout=PATIENCE, interval=0.01) == expected


def test_the_next_task_gets_an_ignored_result_too() -> None:
    result = chain(tasks.add.s(1, 1).set(ignore_result=True), tasks.add.s(10)).apply_async()
    run_all()
    assert result.get(timeout=PATIENCE) == 12


def test_the_next_task_gets_no_note_as_a_result(
    declare: Callable[..., Any], settings: Settings
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_RESULT_BYTES": 1000}

    def large() -> str:
        return "x" * 2000

    result = chord([tasks.add.s(1, 1), declare(large).s()], tasks.collect.s()).apply_async()
    run_all()
    job = Job.objects.get(status="dead")
    assert job.attempt == 1
    assert "ResultNotStored" in job.last_error
    small, not_stored = result.parent
    assert small.get(timeout=PATIENCE) == 2
    with pytest.raises(ResultNotStored, match=r"^result: larger than 1,000 bytes"):
        not_stored.get(timeout=PATIENCE)
    assert not_stored.state == "SUCCESS"
    assert isinstance(not_stored.result, ResultNotStored)


def test_the_next_task_gets_a_result_that_looks_like_the_note(declare: Callable[..., Any]) -> None:
    def orders() -> dict[str, int]:
        return {"not_stored": 3}

    result = chain(declare(orders).s(), tasks.collect.s()).apply_async()
    run_all()
    assert result.get(timeout=PATIENCE) == ["sum", {"not_stored": 3}]


def test_a_chain_is_one_run_that_exists_before_it_begins() -> None:
    result = chain(tasks.add.s(1, 1), tasks.add.s(10)).delay()
    run = WorkflowRun.objects.get()
    assert [(job.step, job.status) for job in run.steps.order_by("pk")] == [
        ("add-1", "ready"),
        ("add-2", "waiting"),
    ]
    run_all()
    assert result.parent.get(timeout=PATIENCE) == 2
    assert (result.get(timeout=PATIENCE), result.parent.parent) == (12, None)


def test_arguments_of_the_whole_go_to_the_first_tasks() -> None:
    results = [
        chain(tasks.add.s(1), tasks.add.s(10)).delay(5),
        group(tasks.add.s(1), tasks.add.s(2)).apply_async((5,)),
        chord([tasks.add.s(1, 4), tasks.add.s(2, 4)])(tasks.collect.s()),
    ]
    run_all()
    assert results[0].get(timeout=PATIENCE) == 16
    assert results[1].get(timeout=PATIENCE) == [6, 7]
    assert results[2].get(timeout=PATIENCE) == ["sum", [5, 6]]


def test_a_failure_ends_what_comes_after_it() -> None:
    result = chain(tasks.add.s(1, 1), tasks.fail.si("no"), tasks.add.s(1), tasks.add.s(1)).delay()
    run_all()
    assert (result.state, result.parent.state) == ("FAILURE", "FAILURE")
    for one in (result, AsyncResult(result.id)):
        with pytest.raises(ValueError, match=r"^no$"):
            one.get(timeout=PATIENCE)
    assert [job.status for job in Job.objects.order_by("pk")] == [
        *("succeeded", "dead", "cancelled", "cancelled"),
    ]


def test_each_task_keeps_its_options() -> None:
    chain(
        tasks.add.s(1, 1).set(queue="bulk", priority=2),
        tasks.add.s(1).set(countdown=60),
        tasks.download.s(),
    ).apply_async(countdown=30)
    first, second, third = Job.objects.order_by("pk")
    assert (first.queue, first.priority, first.status) == ("bulk", 2, "scheduled")
    assert (second.status, third.status, third.at_most_once) == ("waiting", "waiting", False)


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_a_task_has_the_options_that_it_declares(declare: Callable[..., Any]) -> None:
    task = declare(declared, queue="emails", priority=4, expires=3600)
    chain(task.s(), task.si().set(queue="bulk"), tasks.add.si(1)).apply_async(priority=7)
    assert [(job.queue, job.priority, job.expires_at is not None) for job in jobs_in_order()] == [
        ("emails", 7, True),
        ("bulk", 4, True),
        ("default", 0, False),
    ]


def declared() -> None: ...


def jobs_in_order() -> list[Job]:
    return list(Job.objects.order_by("pk"))


@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda: tasks.add.s(1, 1).set(link=tasks.add.s(1)) | tasks.add.s(1), "link is not"),
        (lambda: tasks.add.s(1, 1).on_error(tasks.fail.s()) | tasks.add.s(1), "link_error is not"),
        (lambda: tasks.add.s(1, 1).set(task_id="mine") | tasks.add.s(1), "cannot have a task_id"),
        (lambda: chain(tasks.add.s(1, 1), tasks.add.s(1), task_id="mine"), "task_id of a chain"),
    ],
)
def test_what_no_step_can_have_is_refused(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(EnqueueError, match=problem):
        make().delay()
    assert not Job.objects.exists()
