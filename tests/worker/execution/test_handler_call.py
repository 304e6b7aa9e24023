"""One attempt: whatever is in the row and whatever the handler does, there is an outcome."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest
from django.db import transaction

from django_jobs import JobType, LeaseLost, current_run
from django_jobs.domain.outcomes import Failed, Outcome, Released, Succeeded
from django_jobs.lifecycle.claiming import lease_lost
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.settling import Settled
from django_jobs.models import Job
from django_jobs.signals import job_started
from django_jobs.worker.context.attempt import StopHandler
from django_jobs.worker.execution import handler_call
from tests.app.database_jobs import write_once
from tests.app.jobs import noop
from tests.app.models import Effect
from tests.factories import declared, enqueue_and_claim, settle_one
from tests.worker.attempts import Desk
from tests.worker.handlers.threads import Handlers

HELD = ClaimedJob(
    rank=0.0,
    id=1,
    attempt=1,
    queue="default",
    job_type="app.noop",
    payload="{}",
    payload_version=1,
    priority=0,
    available_at=0.0,
    failures=0,
    crashes=0,
    max_attempts=5,
    max_crashes=3,
    backoff=None,
    timeout=None,
    expires_at=None,
    retry_until=None,
    idempotency_key=None,
    headers="{}",
    cancel_requested=False,
    claimed_at=0.0,
    scheduled_for=None,
    at_most_once=False,
    gates=None,
    workflow_run_id=None,
    worker=1,
)
HUGE_NUMBER = '{"n": ' + "9" * 5000 + "}"
DEEP = '{"n":' * 100_000 + "1" + "}" * 100_000


def made(job_type: JobType[..., Any] = noop, **fields: Any) -> Outcome | Settled:
    return made_of(HELD._replace(job_type=job_type.name, **fields))


def made_of(held: ClaimedJob) -> Outcome | Settled:
    return handler_call.call(Desk().begin(held))


@pytest.mark.parametrize(
    "fields, problem",
    [
        ({"payload": HUGE_NUMBER}, "the payload does not fit"),
        ({"payload": DEEP}, "the payload does not fit"),
        ({"payload": "[]"}, "the payload does not fit"),
        ({"headers": HUGE_NUMBER}, "its headers or time-out cannot be used"),
        ({"headers": DEEP}, "its headers or time-out cannot be used"),
        ({"headers": "[]"}, "not an object"),
        ({"timeout": 1e12}, "its headers or time-out cannot be used"),
        ({"timeout": float("inf")}, "its headers or time-out cannot be used"),
        ({"timeout": float("nan")}, "its headers or time-out cannot be used"),
    ],
)
def test_a_row_that_cannot_be_used_fails_for_good(fields: dict[str, Any], problem: str) -> None:
    outcome = made(**fields)
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert problem in outcome.error.message


def test_a_backoff_that_cannot_be_read_is_the_default() -> None:
    for text in (HUGE_NUMBER, DEEP, "[]"):
        assert HELD._replace(backoff=text).facts().backoff is None


def test_the_deadline_counts_from_the_start_of_the_handler() -> None:
    def tell() -> str:
        run = current_run()
        assert run is not None
        assert run.deadline is not None
        return run.deadline.isoformat()

    with declared(tell, name="app.tell") as job_type:
        before = datetime.now(UTC)
        outcome = made(job_type, timeout=60.0)
        after = datetime.now(UTC)
    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    deadline = datetime.fromisoformat(outcome.result.strip('"'))
    assert before <= deadline - timedelta(seconds=60) <= after


async def exit_async() -> NoReturn:
    sys.exit("out of here")


def exit_plainly() -> NoReturn:
    sys.exit("out of here")


@pytest.mark.parametrize("handler", [exit_async, exit_plainly])
def test_a_handler_that_exits_has_failed(handler: Any) -> None:
    with declared(handler, name="app.exiting") as job_type:
        outcome = made(job_type)
    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("SystemExit", "out of here")
    assert not outcome.final


def test_a_handler_that_is_stopped_is_released() -> None:
    def stop() -> NoReturn:
        raise StopHandler

    with declared(stop, name="app.stopped") as job_type:
        assert isinstance(made(job_type), Released)


async def lose_in_a_group() -> None:
    async def lose() -> NoReturn:
        raise lease_lost(HELD)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lose())


def test_a_lease_that_was_lost_in_a_group_is_lost() -> None:
    with declared(lose_in_a_group, name="app.losing") as job_type, pytest.raises(LeaseLost):
        made(job_type)


class Exits(dict[str, int]):
    def items(self) -> NoReturn:
        sys.exit("a lazy value")


def test_a_result_that_exits_fails_its_attempt() -> None:
    def answer() -> Any:
        return Exits(a=1)

    with declared(answer, name="app.exits") as job_type:
        outcome = made(job_type)
    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("SystemExit", "a lazy value")


def test_an_exception_that_exits_when_inspected_fails_its_attempt() -> None:
    class Explosive(Exception):
        def __getattribute__(self, name: str) -> NoReturn:
            raise SystemExit(name)

    def explode() -> NoReturn:
        raise Explosive

    with declared(explode, name="app.explodes") as job_type:
        outcome = made(job_type)
    assert isinstance(outcome, Failed)
    assert outcome.error.type.endswith("Explosive")


def test_a_receiver_that_exits_ends_the_attempt_only() -> None:
    def leave(**keywords: Any) -> None:
        sys.exit("a receiver")

    job_started.connect(leave)
    try:
        outcome = made()
    finally:
        job_started.disconnect(leave)
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "a receiver"


def test_a_result_that_explodes_is_replaced_by_a_note() -> None:
    class Sly(dict[str, int]):
        def items(self) -> NoReturn:
            raise RuntimeError("no\x00where")

    def answer() -> Any:
        return Sly(a=1)

    with declared(answer, name="app.sly") as job_type:
        outcome = made(job_type)
    assert outcome == Succeeded(
        result='{"not_stored": "no\\\\x00where"}', not_stored="no\\x00where"
    )


def test_an_attempt_settled_elsewhere_commits_no_effect(
    db: None,
) -> None:
    """Its fence is the same. Whatever let it begin twice, one effect is committed."""
    held = enqueue_and_claim(write_once)
    settle_one(held, Succeeded())
    with pytest.raises(LeaseLost):
        made_of(held)
    assert not Effect.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_failing_on_commit_hook_does_not_undo_the_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def write_and_tell() -> None:
        Effect.objects.create(note="once")
        transaction.on_commit(tell_nobody)

    def tell_nobody() -> None:
        raise RuntimeError("nobody is there")

    with declared(write_and_tell, name="app.tell", delivery="exactly_once") as job_type:
        held = enqueue_and_claim(job_type)
        settled = made_of(held)
    assert isinstance(settled, Settled)
    assert settled.decision is not None
    assert Job.objects.get().status == "succeeded"
    assert Effect.objects.count() == 1
    assert "event=on_commit_failed" in caplog.text
    assert "nobody is there" in caplog.text


def test_an_exactly_once_handler_that_leaves_atomic_open_fails(
    desk: Desk, handlers: Handlers
) -> None:
    def enter() -> None:
        transaction.atomic().__enter__()
        Effect.objects.create(note="never committed")

    with declared(enter, name="app.enter", delivery="exactly_once") as job_type:
        held = enqueue_and_claim(job_type)
        outcome = handlers.run(lambda: desk.make(held))
    assert isinstance(outcome, Failed)
    assert "did not leave it" in outcome.error.message
    assert not Effect.objects.exists()
    settle_one(held, outcome)
    job = Job.objects.get()
    assert (job.status, job.failures) == ("scheduled", 1)


@pytest.mark.parametrize(
    "fields", [{"payload_version": 1}, {"workflow_run_id": 7}], ids=["its upgrade", "its results"]
)
def test_an_async_handler_without_a_thread_for_what_it_reads_has_failed(
    desk: Desk, fields: dict[str, Any]
) -> None:
    async def handler() -> None: ...

    async def in_thread(work: Callable[[], Any]) -> Any:
        raise RuntimeError("can't start new thread")

    with declared(handler, name="app.upgraded", version=2, upgrades={1: dict}) as job_type:
        attempt = desk.begin(enqueue_and_claim(job_type)._replace(**fields))
        attempt.in_thread = in_thread
        outcome = asyncio.run(handler_call.acall(attempt))
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "can't start new thread"
    assert not outcome.final
