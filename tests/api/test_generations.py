"""Which job enqueued a job, how many handlers led to it, and what is said of an endless chain."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from pytest_django import Settings
from pytest_django.fixtures import DjangoAssertNumQueries

from django_jobs import JobType, Retry, chain, enqueue
from django_jobs.api import generations, replay_problem
from django_jobs.api.generations import GENERATION, MANY, PARENT
from django_jobs.lifecycle.operations.jobs import replay
from django_jobs.models import Job
from django_jobs.testing import immediate, run_jobs
from tests.app.fan_out_jobs import numbered
from tests.app.jobs import add, noop
from tests.app.long_jobs import this_run
from tests.factories import declared, due_schedule, look, make_dead, run_sql

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_was_said() -> None:
    generations._report.cache_clear()


def generation_of(job_type: str) -> list[int]:
    """Of the jobs of a type, in their order."""
    headers = Job.objects.filter(job_type=job_type).order_by("pk").values_list("headers", flat=True)
    return [one.get(GENERATION, 0) for one in headers]


def parents_of(job_type: str) -> list[int | None]:
    headers = Job.objects.filter(job_type=job_type).order_by("pk").values_list("headers", flat=True)
    return [one.get(PARENT) for one in headers]


def run_handler(handler: Callable[..., Any], **options: Any) -> None:
    """A job of this handler, and all that it leads to."""
    with declared(handler, name="app.handler", **options) as job_type:
        job_type.enqueue()
        run_jobs()


def that_enqueues(job_type: JobType[[], Any]) -> Callable[[], None]:
    def handler() -> None:
        job_type.enqueue()

    return handler


def test_each_handler_of_a_chain_adds_one() -> None:
    seen: list[int] = []
    parents: list[int | None] = []

    def again(n: int) -> None:
        seen.append(this_run().generation)
        parents.append(this_run().parent_id)
        if n < 3:
            handler.enqueue(n + 1)

    with declared(again, name="app.again") as handler:
        handler.enqueue(0)
        run_jobs()
    assert seen == generation_of("app.again") == [0, 1, 2, 3]
    ids = list(Job.objects.order_by("pk").values_list("pk", flat=True))
    assert parents == parents_of("app.again") == [None, *ids[:-1]]


def test_what_no_handler_enqueues_has_no_header() -> None:
    noop.enqueue()
    noop.using(headers={"trace": "7"}).enqueue()
    assert [job.headers for job in Job.objects.order_by("pk")] == [{}, {"trace": "7"}]


def test_a_handler_enqueues_in_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    def handler() -> None:
        noop.enqueue()
        with django_assert_num_queries(1):
            noop.enqueue()

    run_handler(handler)
    assert generation_of("app.noop") == [1, 1]


def enqueue_one() -> None:
    noop.using(headers={"trace": "7"}).enqueue()


def enqueue_by_name() -> None:
    enqueue("app.noop", {})


def enqueue_many() -> None:
    noop.enqueue_many([{}])
    noop.enqueue_many([{}], idempotency_keys=["k"])


def enqueue_with_a_key() -> None:
    noop.using(idempotency_key="k", on_duplicate="replace", delay=60).enqueue()
    noop.using(idempotency_key="k", on_duplicate="replace").enqueue()


def enqueue_on_commit() -> None:
    with transaction.atomic():
        noop.enqueue_on_commit()


def enqueue_with_gates() -> None:
    noop.using(tenant="acme").enqueue()


def start_a_workflow() -> None:
    chain(noop.step(), noop.step()).start()


def spawn() -> None:
    this_run().spawn(noop, [{}, {}], then=noop)


async def enqueue_async() -> None:
    await noop.aenqueue()
    await sync_to_async(noop.enqueue)()
    await asyncio.create_task(noop.aenqueue())


def enqueue_by_async_code() -> None:
    async_to_sync(enqueue_async)()


@pytest.mark.parametrize(
    "handler",
    [
        enqueue_one,
        enqueue_by_name,
        enqueue_many,
        enqueue_with_a_key,
        enqueue_on_commit,
        enqueue_with_gates,
        start_a_workflow,
        spawn,
    ],
)
def test_each_way_to_enqueue_counts(handler: Callable[..., Any]) -> None:
    run_handler(handler)
    assert set(generation_of("app.noop")) == {1}
    assert set(parents_of("app.noop")) == {Job.objects.get(job_type="app.handler").pk}


def test_another_request_of_the_same_type_starts_at_none_again() -> None:
    run_handler(enqueue_one)
    enqueue_one()
    assert generation_of("app.noop") == [1, 0]
    assert Job.objects.order_by("pk").last().headers == {"trace": "7"}  # type: ignore[union-attr]


@pytest.mark.parametrize("handler", [enqueue_async, enqueue_by_async_code])
def test_async_code_counts(handler: Callable[..., Any]) -> None:
    run_handler(handler)
    assert generation_of("app.noop") == [1, 1, 1]
    assert parents_of("app.noop") == [Job.objects.get(job_type="app.handler").pk] * 3


@pytest.mark.django_db(transaction=True)
def test_a_hook_on_commit_of_an_exactly_once_handler_counts() -> None:
    def handler() -> None:
        transaction.on_commit(enqueue_one)

    run_handler(handler, delivery="exactly_once")
    assert generation_of("app.noop") == [1]


@pytest.mark.django_db(transaction=True)
def test_a_plain_thread_knows_of_no_handler() -> None:
    def enqueue_in_thread() -> None:
        enqueue_one()
        connection.close()

    def handler() -> None:
        thread = threading.Thread(target=enqueue_in_thread)
        thread.start()
        thread.join()

    run_handler(handler)
    assert generation_of("app.noop") == [0]


def test_all_attempts_and_replays_of_a_job_have_the_same() -> None:
    seen: list[int] = []

    def fails() -> None:
        seen.append(this_run().generation)
        noop.enqueue()
        raise Retry(after=0)

    with declared(fails, name="app.fails", max_attempts=2) as job_type:
        run_handler(that_enqueues(job_type))
        dead = Job.objects.get(job_type="app.fails")
        assert (dead.status, seen) == ("dead", [1, 1])
        replay([dead.pk], check=replay_problem)
        run_jobs()
    assert seen == [1, 1, 1, 1]
    assert generation_of("app.noop") == [2, 2, 2, 2]
    assert parents_of("app.fails") == [Job.objects.get(job_type="app.handler").pk]
    assert parents_of("app.noop") == [dead.pk] * 4


def test_steps_have_that_of_their_start_and_children_one_more() -> None:
    def spawns() -> None:
        this_run().spawn(numbered, [{"number": 1}], then=noop)

    with declared(spawns, name="app.spawns") as job_type:
        chain(job_type.step(), add.step(first=1)).start()
        run_jobs()
    assert generation_of("app.spawns") == generation_of("app.add") == [0]
    assert generation_of("tests.numbered") + generation_of("app.numbered") == [1]
    assert generation_of("app.noop") == [1]
    parent = Job.objects.get(job_type="app.spawns").pk
    assert parents_of("app.spawns") == parents_of("app.add") == [None]
    assert parents_of("app.noop") == [parent]


def test_a_schedule_starts_at_none() -> None:
    due_schedule(job_type="app.noop")
    look()
    assert (generation_of("app.noop"), parents_of("app.noop")) == ([0], [None])


def test_it_is_counted_where_jobs_run_at_once() -> None:
    seen: list[int] = []

    def again(n: int) -> None:
        seen.append(this_run().generation)
        if n < 2:
            handler.enqueue(n + 1)

    with declared(again, name="app.again") as handler, immediate():
        handler.enqueue(0)
        handler.enqueue(2)
    assert seen == [0, 1, 2, 0]


def test_the_sql_function_starts_at_none_or_at_its_header() -> None:
    def handler() -> None:
        run_sql("SELECT django_jobs_enqueue('app.noop')")
        run_sql(
            "SELECT django_jobs_enqueue('app.noop', headers => jsonb_build_object(%s::text, 7))",
            [GENERATION],
        )

    run_handler(handler)
    assert generation_of("app.noop") == [0, 7]


def test_the_handler_sees_it_in_no_headers() -> None:
    seen: list[dict[str, Any]] = []

    def child() -> None:
        seen.append(dict(this_run().headers))

    with declared(child, name="app.child") as job_type:
        run_handler(that_enqueues(job_type.using(headers={"trace": "7"})))
    assert seen == [{"trace": "7"}]


@pytest.mark.parametrize("written", [None, "7", -1, 1.5, True, [], {}])
def test_what_hands_wrote_there_is_none(written: Any) -> None:
    seen: list[int] = []

    def handler() -> None:
        seen.append(this_run().generation)

    with declared(handler, name="app.handler") as job_type:
        job_type.using(headers={GENERATION: written}).enqueue()
        run_jobs()
    assert seen == [0]


def test_a_long_chain_is_logged_once_and_when_it_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handler() -> None:
        noop.enqueue()

    caplog.set_level(logging.WARNING, "django_jobs")
    with declared(handler, name="app.handler") as job_type:
        for at in (MANY - 2, MANY - 1, MANY - 1, MANY, 2 * MANY - 1, 3 * MANY - 1, 4 * MANY - 1):
            job_type.using(headers={GENERATION: at}).enqueue()
        run_jobs()
    lines = [text for text in caplog.messages if "long_chain" in text]
    assert [text.rpartition(" ")[2] for text in lines] == [
        f"generation={number}" for number in (MANY, 2 * MANY, 4 * MANY)
    ]
    assert "job_type=app.handler attempt=1 enqueues=app.noop" in lines[0]


def test_a_dead_job_can_be_copied_with_its_headers() -> None:
    dead = make_dead(noop.using(headers={GENERATION: 3}))
    noop.using(headers=dead.headers).enqueue()
    run_handler(that_enqueues(noop.using(headers={**dead.headers, PARENT: dead.pk})))
    assert generation_of("app.noop") == [3, 3, 1]
    assert parents_of("app.noop") == [None, None, Job.objects.get(job_type="app.handler").pk]


def test_headers_of_the_largest_size_have_room_for_it(settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_PAYLOAD_BYTES": 1_000}
    headers = {"trace": "x" * (1_000 - len('{"trace":""}'))}
    run_handler(that_enqueues(noop.using(headers=headers)))
    parent = Job.objects.get(job_type="app.handler").pk
    child = Job.objects.get(job_type="app.noop")
    assert child.headers == {**headers, GENERATION: 1, PARENT: parent}
