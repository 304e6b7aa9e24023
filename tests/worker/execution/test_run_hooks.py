"""Hooks around a run: what they restore reaches the handler, what they raise ends the attempt."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone, translation

from django_jobs import Retry, Snooze, current_run
from django_jobs.api.generations import GENERATION, PARENT
from django_jobs.domain.outcomes import Failed, Released, Snoozed, Succeeded, TimedOut
from django_jobs.lifecycle.settling import Settled
from django_jobs.models import Job
from django_jobs.worker.context.attempt import StopHandler
from django_jobs.worker.execution import handler_call
from django_jobs.worker.execution.event_loop import HandlerLoop
from django_jobs.worker.execution.interruption import bound
from django_jobs.worker.timeouts.limits import ThreadTimeouts
from tests.app import hooks
from tests.app.hook_jobs import anote_context, context, note_context, note_context_alone
from tests.app.jobs import add, noop
from tests.app.models import Effect
from tests.factories import declared, enqueue_and_claim
from tests.worker.attempts import Desk
from tests.worker.context.test_steps import Steps
from tests.worker.processes import Start

pytestmark = pytest.mark.django_db

found: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_found() -> Iterator[None]:
    yield
    found.clear()


def look_around() -> None:
    found.append(context())


async def alook_around() -> None:
    await asyncio.sleep(0)
    found.append(context())
    found.append(await sync_to_async(context)())


def broken() -> None:
    raise ConnectionError("the handler's own")


def raise_value(event: Any) -> None:
    if event.kind == "run":
        raise ValueError("from the hook")


@pytest.fixture
def german(hooked: Callable[..., None]) -> Iterator[None]:
    """An enqueue of the tenant acme in German, in New York."""
    hooked("tenants", "locale")
    token = hooks.tenant.set("acme")
    with translation.override("de"), timezone.override("America/New_York"):
        yield
    hooks.tenant.reset(token)


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
def test_a_plain_handler_runs_in_the_context_of_its_enqueue(
    desk: Desk, german: None, delivery: Any
) -> None:
    with declared(look_around, name="app.looker", delivery=delivery) as job_type:
        held = enqueue_and_claim(job_type)
        hooks.tenant.set("other")
        with translation.override("en"), timezone.override("UTC"):
            desk.make(held)
            assert context() == ("other", "en", "UTC")
    assert found == [("acme", "de", "America/New_York")]


@pytest.mark.django_db(transaction=True)
def test_an_async_handler_runs_in_the_context_of_its_enqueue(desk: Desk, german: None) -> None:
    with declared(alook_around, name="app.looker") as job_type:
        held = enqueue_and_claim(job_type)
        hooks.tenant.set("other")
        with translation.override("en"), timezone.override("UTC"):
            assert desk.make(held) == Succeeded()
    assert found == [("acme", "de", "America/New_York")] * 2


def test_what_a_handler_enqueues_has_its_context(desk: Desk, german: None) -> None:
    def parent() -> None:
        noop.enqueue()

    with declared(parent, name="app.parent") as job_type:
        held = enqueue_and_claim(job_type)
        hooks.tenant.set("other")
        with translation.override("en"), timezone.override("UTC"):
            desk.make(held)
    child = Job.objects.get(job_type="app.noop")
    context = {"tenant": "acme", "language": "de", "zone": "America/New_York"}
    assert child.headers == {**context, GENERATION: 1, PARENT: held.id}


def test_spawned_children_and_what_follows_them_have_its_context(desk: Desk, german: None) -> None:
    def parent() -> None:
        run = current_run()
        assert run is not None
        run.spawn(add, [{"first": n} for n in range(3)], then=noop)

    with declared(parent, name="app.parent") as job_type:
        job = job_type.enqueue()
        hooks.tenant.set("other")
        with translation.override("en"), timezone.override("UTC"):
            Steps(desk).work()
    made = Job.objects.exclude(job_type="app.parent").values_list("job_type", "headers")
    context = {"tenant": "acme", "language": "de", "zone": "America/New_York"}
    passed_on = {**context, GENERATION: 1, PARENT: job.pk}
    assert sorted(name for name, _ in made) == ["app.add"] * 3 + ["app.noop"]
    assert all(headers == passed_on for _, headers in made)


def test_hooks_get_the_run_in_order(desk: Desk, hooked: Callable[..., None]) -> None:
    hooked("outer", "inner")
    held = enqueue_and_claim(add, 1, headers={"given": 1})
    hooks.seen.clear()
    assert desk.make(held) == Succeeded(result="2")
    assert hooks.seen == [
        ("outer", "run"),
        ("inner", "run", "app.add", "default", {"given": 1}),
        ("inner left", "run", {"first": 1}, held.id, 1),
        ("outer left", "run"),
    ]


def test_a_run_of_exactly_once_is_one_event_outside_of_its_transaction(
    desk: Desk, hooked: Callable[..., None]
) -> None:
    hooked("changing")
    hooks.changes["after"] = lambda event: found.append(Effect.objects.count())

    def write() -> None:
        Effect.objects.create(note="x")

    with declared(write, name="app.writer", delivery="exactly_once") as job_type:
        held = enqueue_and_claim(job_type)
        found.clear()
        assert isinstance(desk.make(held), Settled)
    assert found == [1]


# Failures


def failed(outcome: Any) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_that_raises_makes_a_failed_attempt_that_is_retried(
    desk: Desk, hooked: Callable[..., None], when: str
) -> None:
    hooked("inner", "changing")
    hooks.changes[when] = raise_value
    with declared(
        look_around, name="app.looker", retry_on=OSError, discard_on=ZeroDivisionError
    ) as job_type:
        outcome = failed(desk.make(enqueue_and_claim(job_type)))
    assert outcome.error.type == "django_jobs.exceptions.HookError"
    assert outcome.error.message == (
        "the hook tests.app.hooks.changing raised ValueError: from the hook"
    )
    assert "in raise_value" in outcome.error.traceback
    assert not outcome.final
    assert len(found) == (when == "after")
    assert hooks.seen[-1][-1] == "HookError"  # the outer one has seen it


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_may_choose_the_fate_of_a_job(
    desk: Desk, hooked: Callable[..., None], when: str
) -> None:
    def snooze(event: Any) -> None:
        if event.kind == "run":
            raise Snooze(60, "the feature is off")

    hooked("changing")
    hooks.changes[when] = snooze
    held = enqueue_and_claim(noop)
    assert desk.make(held) == Snoozed(seconds=60, reason="the feature is off")


def test_a_hook_may_choose_the_fate_after_a_failure(
    desk: Desk, hooked: Callable[..., None]
) -> None:
    def retry(event: Any) -> None:
        if event.kind == "run":
            raise Retry(after=7)

    hooked("failing_after")
    hooks.changes["after"] = retry
    with declared(broken, name="app.broken") as job_type:
        outcome = failed(desk.make(enqueue_and_claim(job_type)))
    assert outcome.retry_after == 7


@pytest.mark.parametrize("hook", ["failing_after", "swallowing"])
def test_the_failure_of_the_handler_stands_whatever_a_hook_does(
    desk: Desk, hooked: Callable[..., None], hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooked(hook)
    hooks.changes["after"] = raise_value
    with declared(broken, name="app.broken", retry_on=OSError) as job_type:
        outcome = failed(desk.make(enqueue_and_claim(job_type)))
    assert (outcome.error.type, outcome.final) == ("ConnectionError", False)
    logged = [record.getMessage() for record in caplog.records if record.levelno > logging.WARNING]
    assert [line.split()[0] for line in logged] == ["event=hook_failed"] * (hook != "swallowing")


def raise_stop(event: Any) -> None:
    """As a worker does in what still runs at the end of a drain."""
    if event.kind == "run":
        raise StopHandler


def leave_python(event: Any) -> None:
    if event.kind == "run":
        sys.exit("a client of the hook gave up")


def press_a_key(event: Any) -> None:
    if event.kind == "run":
        raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("raises", [leave_python, press_a_key])
def test_a_hook_that_exits_has_failed(
    desk: Desk, hooked: Callable[..., None], raises: Callable[..., None], when: str
) -> None:
    hooked("changing")
    with declared(look_around, name="app.looker", retry_on=(OSError,)) as job_type:
        held = enqueue_and_claim(job_type)
        hooks.changes[when] = raises
        outcome = failed(desk.make(held))
    assert (outcome.error.type, outcome.final) == ("django_jobs.exceptions.HookError", False)
    assert "the hook tests.app.hooks.changing raised" in outcome.error.message


@pytest.mark.parametrize("raises", [leave_python, press_a_key])
def test_a_hook_that_exits_after_its_handler_failed_changes_nothing(
    desk: Desk,
    hooked: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    raises: Callable[..., None],
) -> None:
    hooked("failing_after")
    hooks.changes["after"] = raises
    with declared(broken, name="app.broken") as job_type:
        outcome = failed(desk.make(enqueue_and_claim(job_type)))
    assert outcome.error.type == "ConnectionError"
    assert "event=hook_failed" in caplog.text


@pytest.mark.parametrize("raises", [raise_value, raise_stop, leave_python])
def test_what_has_committed_stands(
    desk: Desk,
    hooked: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    raises: Callable[..., None],
) -> None:
    hooked("changing")
    hooks.changes["after"] = raises
    with declared(look_around, name="app.once", delivery="exactly_once") as job_type:
        settled = desk.make(enqueue_and_claim(job_type))
    assert isinstance(settled, Settled)
    assert settled.decision is not None
    assert settled.decision.status == "succeeded"
    assert "event=hook_failed" in caplog.text


def test_a_hook_that_is_no_context_manager_is_named(
    desk: Desk, hooked: Callable[..., None]
) -> None:
    held = enqueue_and_claim(noop)
    hooked("plain")
    outcome = failed(desk.make(held))
    assert "tests.app.hooks.plain returned a NoneType, not a context" in outcome.error.message


def test_hooks_see_a_time_out_as_the_handler_does_and_cannot_change_it(
    desk: Desk, hooked: Callable[..., None]
) -> None:
    def spin() -> None:
        while True:
            sum(range(100))

    def retry(event: Any) -> None:
        if event.kind == "run":
            raise Retry

    hooked("failing_after", "inner")
    hooks.changes["after"] = retry
    with declared(spin, name="app.spinner", timeout=0.05) as job_type:
        attempt = desk.begin(enqueue_and_claim(job_type))
        bound(attempt, timeouts=ThreadTimeouts(), loop=HandlerLoop())
        outcome = handler_call.call(attempt)
    assert isinstance(outcome, TimedOut)
    assert type(outcome.exception).__name__ == "TimeLimitExceeded"
    assert hooks.seen[-1][-1] == "TimeLimitExceeded"


def test_a_stop_passes_the_hooks(desk: Desk, hooked: Callable[..., None]) -> None:
    def stopped() -> None:
        raise StopHandler

    hooked("swallowing", "inner")
    with declared(stopped, name="app.stopped") as job_type:
        outcome = desk.make(enqueue_and_claim(job_type))
    assert isinstance(outcome, Released)
    assert hooks.seen[-1][-1] == "StopHandler"


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_a_worker_and_its_isolated_children_run_the_hooks(
    start_worker: Start, german: None
) -> None:
    jobs = [note_context.enqueue(), anote_context.enqueue(), note_context_alone.enqueue()]
    start_worker(
        "--burst",
        "--threads",
        "2",
        TEST_DJANGO_JOBS=json.dumps({"HOOKS": settings.DJANGO_JOBS["HOOKS"]}),
    ).wait()
    results = [Job.objects.get(pk=job.pk).result for job in jobs]
    assert results == [["acme", "de", "America/New_York"]] * 3
