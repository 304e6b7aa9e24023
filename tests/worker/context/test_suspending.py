"""Sleeps and waits for signals that end the attempt, and are passed by the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, transaction

from django_jobs import LeaseLost, SignalTimeout, enqueue
from django_jobs.api import replay_problem
from django_jobs.api.editing import edit_job
from django_jobs.domain.outcomes import Failed, Outcome, Snoozed, Succeeded
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import Settled
from django_jobs.models import Job, Receipt
from django_jobs.models.database import database_time
from django_jobs.worker.context import durable
from django_jobs.worker.context.attempt import Attempt, Suspended
from django_jobs.worker.context.run_context import RunContext
from tests.app.long_jobs import this_run
from tests.app.models import Effect
from tests.factories import (
    claim_ready,
    declared,
    enqueue_and_claim,
    failure,
    register_worker,
    run_sql,
    settle_one,
)
from tests.patience import PATIENCE
from tests.worker.attempts import Desk, next_attempt
from tests.worker.processes import until


def let_time_pass(hours: float) -> None:
    """As if all sleeps and waits had begun so long ago."""
    run_sql(
        "UPDATE django_jobs_receipt SET answer = jsonb_set(answer, '{until}', to_jsonb("
        "(answer ->> 'until')::timestamptz - make_interval(secs => %s)))"
        " WHERE answer ->> 'until' IS NOT NULL",
        [hours * 3600],
    )


def until_of(key: str) -> Any:
    return Receipt.objects.get(key=key).answer["until"]


def snoozed(outcome: Outcome | Settled) -> tuple[float, str | None]:
    """Seconds, rounded to a minute, and the signal."""
    assert isinstance(outcome, Snoozed)
    return round(outcome.seconds / 60) * 60, outcome.awaits


class Flow:
    """A job whose attempts are made with time passing between them."""

    def __init__(self, desk: Desk, handler: Callable[[], Any], **options: Any) -> None:
        self.desk = desk
        self.handler = handler
        self.options = options
        with declared(handler, name="app.flow", **options) as job_type:
            self.held = enqueue_and_claim(job_type)
        self.job = Job.objects.get(pk=self.held.id)

    def run(self) -> Outcome | Settled:
        """The next attempt."""
        with declared(self.handler, name="app.flow", **self.options):
            outcome = self.desk.make(self.held)
        self.held = next_attempt(self.held)
        return outcome


def test_a_sleep_ends_the_attempt_and_the_next_one_passes_it(desk: Desk) -> None:
    passed = []

    def handler() -> None:
        passed.append(0)
        this_run().sleep("first", timedelta(hours=1))
        passed.append(1)
        this_run().sleep("second", 7200)
        passed.append(2)

    flow = Flow(desk, handler)
    assert snoozed(flow.run()) == (3600, None)
    until = until_of("sleep:first")
    let_time_pass(0.5)
    assert snoozed(flow.run()) == (1800, None), "not measured again"
    let_time_pass(0.5)
    assert snoozed(flow.run()) == (7200, None)
    let_time_pass(2)
    assert flow.run() == Succeeded()
    assert passed == [0, 0, 0, 1, 0, 1, 2]
    assert until_of("sleep:first") != until
    assert Receipt.objects.count() == 2


def sleeper() -> str:
    this_run().sleep("first", 3600)
    this_run().sleep("second", 3600)
    return "awake"


async def async_sleeper() -> str:
    await this_run().asleep("first", 3600)
    await this_run().asleep("second", 3600)
    return "awake"


def act_at_once(job: Job, seconds: float = -1) -> bool:
    return bool(edit_job(job.pk, run_at=database_time() + timedelta(seconds=seconds)).done)


VERBS: dict[str, Callable[[Job], bool]] = {
    "run now": lambda job: bool(job_operations.run_now([job.pk]).done),
    "edit": act_at_once,
}


@pytest.mark.parametrize("handler", [sleeper, async_sleeper])
@pytest.mark.parametrize("verb", VERBS)
def test_a_person_wakes_a_sleeper_from_the_sleep_that_it_is_in(
    desk: Desk, verb: str, handler: Callable[[], Any]
) -> None:
    worker = register_worker()
    with declared(handler, name="app.sleeper") as job_type:
        job = job_type.enqueue()
        for _ in range(2):
            (held,) = claim_ready(worker)
            outcome = desk.make(held)
            assert snoozed(outcome) == (3600, None)
            settle_one(held, outcome)
            assert VERBS[verb](job)
        (held,) = claim_ready(worker)
        assert desk.make(held) == Succeeded(result='"awake"')


def test_an_edit_of_the_due_time_moves_the_sleep(desk: Desk) -> None:
    worker = register_worker()
    with declared(sleeper, name="app.sleeper") as job_type:
        job = job_type.enqueue()
        (held,) = claim_ready(worker)
        settle_one(held, desk.make(held))
        assert act_at_once(job, 7200)
        run_sql("UPDATE django_jobs_job SET status = 'ready'")
        (held,) = claim_ready(worker)
        assert snoozed(desk.make(held)) == (7200, None)


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_tried_again_at_once_sleeps_on(desk: Desk, verb: str) -> None:
    """It failed before it came to the sleep."""
    worker = register_worker()
    with declared(sleeper, name="app.sleeper") as job_type:
        job, other = job_type.enqueue(), job_type.enqueue()
        for held in claim_ready(worker):
            settle_one(held, desk.make(held))
        run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE id = %s", [job.pk])
        (held,) = claim_ready(worker)
        settle_one(held, failure())
        assert VERBS[verb](job)
        (held,) = claim_ready(worker)
        assert snoozed(desk.make(held)) == (3600, None)
        assert not VERBS[verb](job)  # it runs
    assert Job.objects.get(pk=other.pk).status == "scheduled"
    assert Receipt.objects.get(job=other.pk).answer["until"] > str(database_time())


def test_a_person_wakes_a_sleep_step(desk: Desk) -> None:
    worker = register_worker()
    step = enqueue("django_jobs.sleep", {"seconds": 3600})
    (held,) = claim_ready(worker)
    settle_one(held, desk.make(held))
    assert job_operations.run_now([step.pk]).done == [step.pk]
    (held,) = claim_ready(worker)
    assert desk.make(held) == Succeeded()


def test_a_sleep_that_is_over_at_once_does_not_end_the_attempt(desk: Desk) -> None:
    def handler() -> None:
        this_run().sleep("none", 0)
        this_run().sleep("negative", -1)

    assert desk.run(handler) == [Succeeded()]


def test_a_sleep_of_ages_is_one_that_postgresql_can_add(desk: Desk) -> None:
    def handler() -> None:
        this_run().sleep("ages", float("inf"))

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Snoozed)
    assert outcome.seconds > 99 * 365 * 86_400


WAITS_FOR_US = """
SELECT 1 FROM pg_locks WHERE NOT granted
  AND transactionid = pg_current_xact_id_if_assigned()::xid"""


@pytest.mark.parametrize(
    "begin",
    [
        lambda attempt: RunContext(attempt).sleep("nap", 3600),
        lambda attempt: asyncio.run(RunContext(attempt).await_for("paid", 3600)),
    ],
)
def test_a_locked_job_that_begins_to_wait_holds_up_no_other_handler(
    desk: Desk, begin: Callable[[Attempt], Any]
) -> None:
    """Such as by a signal or a cancel in a transaction that is open for long."""
    held, background = enqueue_and_claim(), desk.reporter.background
    attempt = desk.begin(held)
    with ThreadPoolExecutor(1) as elsewhere:
        with transaction.atomic():
            run_sql("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held.id])
            begun = elsewhere.submit(begin, attempt)
            until(lambda: run_sql(WAITS_FOR_US))
            other = background.submit(lambda: "another's answer")

            def is_done() -> bool:
                background.deadline.enforce()  # as the main thread does
                return other.done()

            until(is_done)
            assert not begun.done()
        with pytest.raises(Suspended):
            begun.result(PATIENCE)


@pytest.mark.parametrize("inside", [True, False])
def test_a_sleep_rolls_back_the_handlers_transaction_and_not_itself(
    desk: Desk, inside: bool
) -> None:
    def body() -> None:
        Effect.objects.create(note="written")
        this_run().sleep("nap", 3600)

    def handler() -> None:
        with transaction.atomic():
            body()

    flow = Flow(desk, handler) if inside else Flow(desk, body, delivery="exactly_once")
    assert snoozed(flow.run()) == (3600, None)
    assert not Effect.objects.exists()
    let_time_pass(1)
    outcome = flow.run()
    if not inside:
        assert isinstance(outcome, Settled)
    assert Effect.objects.count() == 1


def test_except_exception_in_a_handler_does_not_catch_it(desk: Desk) -> None:
    def handler() -> None:
        with contextlib.suppress(Exception):
            this_run().sleep("nap", 60)

    (outcome,) = desk.run(handler)
    assert snoozed(outcome) == (60, None)


def test_a_wait_ends_with_its_signal_and_returns_its_data_in_every_attempt(desk: Desk) -> None:
    given = []

    def handler() -> None:
        given.append(this_run().wait_for("approval"))
        this_run().sleep("after", 60)

    flow = Flow(desk, handler)
    outcome = flow.run()
    assert isinstance(outcome, Snoozed)
    assert (outcome.seconds, outcome.awaits) == (float("inf"), "approval")
    assert flow.job.signal("approval", {"ok": [True, None]})
    assert snoozed(flow.run()) == (60, None)
    assert snoozed(flow.run()) == (60, None)
    assert given == [{"ok": [True, None]}] * 2


def test_a_signal_that_came_before_is_returned_at_once(desk: Desk) -> None:
    def handler() -> Any:
        return this_run().wait_for("approval", timeout=60)

    flow = Flow(desk, handler)
    assert flow.job.signal("approval")
    assert flow.run() == Succeeded(), "its data are null"


def test_a_wait_without_time_looks_once(desk: Desk) -> None:
    def handler() -> str:
        try:
            return str(this_run().wait_for("approval", timeout=0))
        except SignalTimeout:
            return "none"

    assert Flow(desk, handler).run() == Succeeded(result='"none"')
    flow = Flow(desk, handler)
    assert flow.job.signal("approval", 7)
    assert flow.run() == Succeeded(result='"7"')


def test_the_time_out_is_measured_once_and_stays_over(desk: Desk) -> None:
    given: list[Any] = []

    def handler() -> None:
        try:
            given.append(this_run().wait_for("approval", timeout=timedelta(hours=1)))
        except SignalTimeout as error:
            given.append(error.name)
        raise ConnectionError

    flow = Flow(desk, handler)
    assert snoozed(flow.run()) == (3600, "approval")
    let_time_pass(0.5)
    assert snoozed(flow.run()) == (1800, "approval")
    let_time_pass(0.5)
    assert isinstance(flow.run(), Failed)
    assert not flow.job.signal("approval", "too late")
    assert isinstance(flow.run(), Failed)
    assert given == ["approval", "approval"]


def test_a_signal_counts_that_came_before_anyone_saw_the_time_out(desk: Desk) -> None:
    def handler() -> Any:
        return this_run().wait_for("approval", timeout=3600)

    flow = Flow(desk, handler)
    flow.run()
    let_time_pass(2)
    assert flow.job.signal("approval", 1)
    assert flow.run() == Succeeded(result="1")


def test_a_time_out_that_is_not_caught_is_not_retried_unless_declared(desk: Desk) -> None:
    def handler() -> None:
        this_run().wait_for("approval", timeout=0)

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert outcome.error.message == "the signal 'approval' did not arrive in time"
    (outcome,) = desk.run(handler, retry_on=(SignalTimeout,))
    assert isinstance(outcome, Failed)
    assert not outcome.final


@pytest.mark.parametrize("caught", [True, False])
def test_a_replay_waits_again_if_the_job_died_of_the_time_out(desk: Desk, caught: bool) -> None:
    def handler() -> None:
        try:
            this_run().wait_for("approval", timeout=0)
        except SignalTimeout:
            if caught:
                raise ConnectionError from None
            raise

    flow = Flow(desk, handler, retry_on=(OSError,), max_attempts=1)
    held = flow.held
    outcome = flow.run()
    run_sql("UPDATE django_jobs_job SET attempt = 1")
    assert not isinstance(outcome, Settled)
    settle_one(held, outcome)
    with declared(handler, name="app.flow"):
        result = job_operations.replay([held.id], check=replay_problem)
        assert result.done == [held.id]
        assert Receipt.objects.filter(key="signal:approval").exists() == caught
        assert Job.objects.get(pk=held.id).signal("approval") != caught
        claim_ready(register_worker())


@pytest.mark.parametrize("name", ["approval", "l'accord", "50% \\ {done}"])
def test_a_replay_forgets_no_wait_that_the_handler_caught(desk: Desk, name: str) -> None:
    def handler() -> None:
        for other in ("first", f"{name} too"):
            with contextlib.suppress(SignalTimeout):
                this_run().wait_for(other, timeout=0)
        this_run().wait_for(name, timeout=0)

    flow = Flow(desk, handler, max_attempts=1)
    held = flow.held
    outcome = flow.run()
    run_sql("UPDATE django_jobs_job SET attempt = 1")
    assert not isinstance(outcome, Settled)
    settle_one(held, outcome)
    with declared(handler, name="app.flow"):
        assert job_operations.replay([held.id], check=replay_problem).done == [held.id]
    keys = set(Receipt.objects.values_list("key", flat=True))
    assert keys == {"signal:first", f"signal:{name} too"}


@pytest.mark.parametrize("method", ["sleep", "wait_for"])
def test_a_job_that_is_delivered_at_most_once_is_refused(desk: Desk, method: str) -> None:
    def handler() -> None:
        getattr(this_run(), method)("nap", 60)

    (outcome,) = desk.run(handler, delivery="at_most_once")
    assert isinstance(outcome, Failed)
    assert outcome.error.message.startswith(f"{method}() ends the attempt, and a job that is ")


@pytest.mark.parametrize(
    "call, problem",
    [
        (lambda: this_run().sleep("", 1), r"sleep\(\): a key is text of 1 to 200"),
        (lambda: this_run().sleep("nap", "1 h"), r"sleep\(\) takes a timedelta or a number"),
        (lambda: this_run().wait_for("x" * 201), r"wait_for\(\): the name of a signal is text"),
        (lambda: this_run().wait_for("approval", True), r"wait_for\(\) takes a timedelta"),
        (lambda: this_run().once("sleep:nap", int), "keys that begin with"),
    ],
)
def test_what_cannot_be_a_key_or_a_time_is_refused(
    desk: Desk, call: Callable[[], Any], problem: str
) -> None:
    def handler() -> None:
        with pytest.raises(ValueError, match=problem):
            call()

    assert desk.run(handler) == [Succeeded()]
    assert not Receipt.objects.exists()


def test_the_longest_key_and_name_can_be_stored(desk: Desk) -> None:
    def handler() -> None:
        this_run().sleep("x" * 200, 0)
        this_run().wait_for("x" * 200)

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Snoozed)
    assert outcome.awaits == "x" * 200


@pytest.mark.parametrize("method", ["sleep", "wait_for"])
def test_a_handler_that_lost_its_job_does_not_wait(desk: Desk, method: str) -> None:
    def handler() -> None:
        run_sql("UPDATE django_jobs_job SET attempt = 2")
        getattr(this_run(), method)("nap", 60)

    with pytest.raises(LeaseLost):
        desk.run(handler)
    assert not Receipt.objects.exists()


def test_async_handlers_sleep_and_wait_too(desk: Desk) -> None:
    async def handler() -> Any:
        await this_run().asleep("nap", 3600)
        await asyncio.sleep(0)
        return await this_run().await_for("approval", timeout=7200)

    flow = Flow(desk, handler)
    assert snoozed(flow.run()) == (3600, None)
    let_time_pass(1)
    assert snoozed(flow.run()) == (7200, "approval")
    assert flow.job.signal("approval", 1)
    assert flow.run() == Succeeded(result="1")


def test_an_outage_fails_the_attempt_after_a_while(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*arguments: Any) -> Any:
        raise OperationalError("away")

    monkeypatch.setattr(durable, "PATIENCE", 0.0)
    monkeypatch.setattr(durable, "begin_sleep", away)

    def handler() -> None:
        this_run().sleep("nap", 1)

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "the database was away for too long"
