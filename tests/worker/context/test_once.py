"""A call outside that is made once, whatever becomes of the attempts."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, NoReturn

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs import LeaseLost
from django_jobs.domain.outcomes import Failed, Outcome, Snoozed, Succeeded, TimedOut
from django_jobs.lifecycle import progress
from django_jobs.lifecycle.settling import Settled
from django_jobs.models import Effect as StoredEffect
from django_jobs.models import Receipt
from django_jobs.signals import worker_event
from django_jobs.worker.context import durable
from tests.app.long_jobs import this_run
from tests.app.models import Effect
from tests.factories import declared, enqueue_and_claim, heard, run_sql
from tests.patience import PATIENCE
from tests.worker.attempts import Desk

effects = StoredEffect.objects


class Exits(dict[str, int]):
    def items(self) -> NoReturn:
        raise SystemExit("a lazy answer")


def test_an_answer_that_exits_fails_the_attempt_and_not_its_thread(desk: Desk) -> None:
    def handler() -> None:
        this_run().once("charge", lambda: Exits(a=1))

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("SystemExit", "a lazy answer")
    assert not Receipt.objects.exists()


class Remote:
    """The other side, which counts its calls."""

    def __init__(self, answer: Any = None) -> None:
        self.calls = 0
        self.answer = answer

    def call(self) -> Any:
        """One call."""
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_later_attempt_gets_the_answer_without_a_call(desk: Desk) -> None:
    remote, given = Remote({"id": (7, 2.5)}), []

    def handler() -> None:
        given.append(this_run().once("charge", remote.call))
        if this_run().attempt == 1:
            raise ConnectionError("after the call")

    with heard(worker_event) as events:
        outcomes = desk.run(handler, handler, handler)
    assert [type(one) for one in outcomes] == [Failed, Succeeded, Succeeded]
    assert remote.calls == 1
    assert given == [{"id": [7, 2.5]}] * 3  # the first too as JSON gives it back
    receipt = Receipt.objects.get()
    assert (receipt.key, receipt.attempt, receipt.prevented) == ("charge", 1, 2)
    prevented = [one["fields"] for one in events if one["sender"] == "duplicate_prevented"]
    assert [(one["attempt"], one["made_by"], one["key"]) for one in prevented] == [
        (2, 1, "charge"),
        (3, 1, "charge"),
    ]
    assert desk.heard == 3


def test_each_key_makes_its_own_call(desk: Desk) -> None:
    remote = Remote()

    def handler() -> None:
        for key in ("first", "second", "first"):
            assert this_run().once(key, remote.call) is None

    assert desk.run(handler) == [Succeeded()]
    assert remote.calls == 2
    assert list(Receipt.objects.order_by("pk").values_list("key", "prevented")) == [
        ("first", 1),
        ("second", 0),
    ]


def test_the_receipt_survives_a_rollback_of_the_handlers_transaction(desk: Desk) -> None:
    remote = Remote("done")

    def handler() -> None:
        with transaction.atomic():
            Effect.objects.create(note="rolled back")
            this_run().once("charge", remote.call)
            raise ConnectionError

    with CaptureQueriesContext(connection) as ours:
        desk.run(handler, handler)
    assert remote.calls == 1
    assert not Effect.objects.exists()
    assert not [query for query in ours if "receipt" in query["sql"]]


def test_a_call_that_raises_leaves_no_receipt_and_is_made_again(desk: Desk) -> None:
    remote = Remote(ConnectionError("no answer"))

    def handler() -> None:
        this_run().once("charge", remote.call)

    failed, again = desk.run(handler, handler)
    assert isinstance(failed, Failed)
    assert isinstance(again, Failed)
    assert failed.error.message == "no answer"
    assert remote.calls == 2
    assert not Receipt.objects.exists()


def test_an_answer_that_cannot_be_stored_becomes_a_note(desk: Desk) -> None:
    remote, given = Remote({1, 2}), []

    def handler() -> None:
        given.append(this_run().once("charge", remote.call))

    desk.run(handler, handler)
    assert given == [{"not_stored": "answer: a set is not JSON; pass sorted(value)"}] * 2
    assert remote.calls == 1


@pytest.mark.parametrize(
    "key, problem",
    [
        ("", "1 to 200 characters, not one of 0"),
        ("x" * 201, "1 to 200 characters, not one of 201"),
        ("nul \x00", "NUL"),
        ("surrogate \ud800", "surrogate"),
        (7, "1 to 200 characters, not 7"),
        (None, "1 to 200 characters, not None"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused_before_the_call(
    desk: Desk, key: Any, problem: str
) -> None:
    remote = Remote()

    def handler() -> None:
        with pytest.raises(ValueError, match=rf"once\(\).*{problem}"):
            this_run().once(key, remote.call)

    assert desk.run(handler) == [Succeeded()]
    assert remote.calls == 0


def test_a_handler_that_lost_its_job_makes_no_call(desk: Desk) -> None:
    remote = Remote()

    def handler() -> None:
        run_sql("UPDATE django_jobs_job SET attempt = 2")
        this_run().once("charge", remote.call)

    with pytest.raises(LeaseLost):
        desk.run(handler)
    assert remote.calls == 0


def test_the_receipt_of_a_call_is_stored_although_the_job_was_lost(
    desk: Desk,
) -> None:
    remote = Remote("late")

    def call() -> Any:
        run_sql("UPDATE django_jobs_job SET attempt = 2")
        return remote.call()

    def handler() -> Any:
        return this_run().once("charge", call)

    def next_one() -> Any:
        return this_run().once("charge", remote.call)

    with declared(handler, name="app.handler") as job_type:
        held = enqueue_and_claim(job_type)
        desk.make(held)
    with declared(next_one, name="app.handler"):
        assert desk.make(held._replace(attempt=2)) == Succeeded(result='"late"')
    assert remote.calls == 1


def test_of_two_concurrent_calls_both_get_the_first_receipt(desk: Desk) -> None:
    def call() -> str:
        run_sql(
            "INSERT INTO django_jobs_receipt (job_id, key, attempt, answer, made_at)"
            " SELECT id, 'charge', 9, '\"theirs\"', now() FROM django_jobs_job"
        )
        return "ours"

    def handler() -> Any:
        return this_run().once("charge", call)

    assert desk.run(handler) == [Succeeded(result='"theirs"')]


def test_an_outage_refuses_a_once_call_before_it_and_delays_its_receipt(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, tries = Remote("stored in the end"), []
    monkeypatch.setattr(durable, "PATIENCE", 0.0)

    def away(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) in (1, 2, 3):
            raise OperationalError("away")
        return progress.store(*arguments)

    def handler() -> Any:
        return this_run().once("charge", remote.call)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "look_up", away)
        (failed,) = desk.run(handler)
    assert isinstance(failed, Failed)
    assert "the call was not made" in failed.error.message
    assert remote.calls == 0
    monkeypatch.setattr(durable, "store", away)
    assert desk.run(handler) == [Succeeded(result='"stored in the end"')]
    assert (remote.calls, len(tries)) == (1, 4)


REFUSE = """
CREATE OR REPLACE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'no euros here';
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON django_jobs_receipt
FOR EACH ROW WHEN (NEW.answer::text LIKE {}) EXECUTE FUNCTION pg_temp.refuse()
"""


@pytest.mark.parametrize("pattern, is_noted", [("'%€%'", True), ("'%'", False)])
def test_an_answer_that_the_database_refuses_holds_up_no_handler(
    desk: Desk, pattern: str, is_noted: bool
) -> None:
    """It was tried again for ever, in the thread that all handlers of the process share."""

    def handler() -> Any:
        return this_run().once("charge", lambda: "12 €")

    run_sql(REFUSE.format(pattern))
    try:
        (outcome,) = desk.run(handler)
    finally:
        run_sql("DROP TRIGGER refuse ON django_jobs_receipt")
    if is_noted:
        assert isinstance(outcome, Succeeded)
        assert "no euros here" in json.loads(outcome.result or "")["not_stored"]
        assert Receipt.objects.get().answer == json.loads(outcome.result or "")
    else:
        assert isinstance(outcome, Failed)
        assert "no euros here" in outcome.error.message
    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Succeeded)
    assert json.loads(outcome.result or "") == "12 €"


def test_async_handlers_call_once_too(desk: Desk) -> None:
    remote = Remote([1])

    async def call() -> Any:
        return remote.call()

    async def handler() -> Any:
        return await this_run().aonce("charge", call)

    assert desk.run(handler, handler) == [Succeeded(result="[1]")] * 2
    assert remote.calls == 1
    assert Receipt.objects.get().prevented == 1


def test_a_timed_out_attempt_ends_once_its_receipt_is_stored(desk: Desk) -> None:
    """The database is slow, and a time-out did not wait for it."""
    held = enqueue_and_claim()
    attempt, another = desk.begin(held), desk.begin(held._replace(id=held.id + 1))
    background, stored = desk.reporter.background, threading.Event()
    storing = background.submit_for_attempt(attempt, lambda: stored.wait(PATIENCE))
    with ThreadPoolExecutor(1) as elsewhere:
        ending = elsewhere.submit(desk.reporter.end, attempt, TimedOut(seconds=1.0))
        with pytest.raises(TimeoutError):
            ending.result(0.1)
        desk.reporter.end(another, TimedOut(seconds=1.0))  # neither another's
        desk.reporter.end(attempt, Succeeded())  # nor a success waits for it
        assert not storing.done()
        stored.set()
        ending.result(PATIENCE)
        assert storing.done()


class TestAnEffect:
    """A call with ``scope="effect"`` is made once by all jobs."""

    numbers = count()
    """Of job types."""

    @pytest.fixture
    def remote(self) -> Remote:
        """What charges the order."""
        return Remote({"id": 7})

    @staticmethod
    def handler(call: Any, **options: Any) -> Any:
        """One that charges order 7, and returns the answer."""

        def handler() -> Any:
            return this_run().once("order-7", call, scope="effect", **options)

        return handler

    def charge(self, desk: Desk, call: Any, **options: Any) -> Outcome | Settled:
        """The first attempt of a new job, whose worker does not write its end."""
        name = f"app.charge_{next(self.numbers)}"
        with declared(self.handler(call, **options), name=name) as job_type:
            return desk.make(enqueue_and_claim(job_type))

    def test_another_job_gets_the_answer_without_a_call(self, desk: Desk, remote: Remote) -> None:
        with heard(worker_event) as events:
            outcomes = [self.charge(desk, remote.call) for _ in range(3)]
        assert outcomes == [Succeeded(result='{"id":7}')] * 3
        assert remote.calls == 1
        effect = effects.get()
        first, second, third = Receipt.objects.order_by("job_id")
        assert (effect.job_id, effect.attempt, effect.prevented) == (first.job_id, 1, 2)
        for receipt, prevented in (first, 0), (second, 1), (third, 1):
            assert (receipt.key, receipt.answer) == ("effect:order-7", {"id": 7})
            assert receipt.prevented == prevented
        logged = [one["fields"] for one in events if one["sender"] == "duplicate_prevented"]
        assert [(one["job_id"], one["made_by_job"], one["made_by"]) for one in logged] == [
            (second.job_id, first.job_id, 1),
            (third.job_id, first.job_id, 1),
        ]

    def test_a_later_attempt_of_a_job_has_its_receipt_and_no_other_is_counted(
        self, desk: Desk, remote: Remote
    ) -> None:
        handler = self.handler(remote.call, keep=0)
        assert desk.run(handler, handler) == [Succeeded(result='{"id":7}')] * 2
        assert (remote.calls, effects.get().prevented) == (1, 0)
        assert Receipt.objects.get().prevented == 1

    def test_it_is_made_again_by_another_job_after_its_time(
        self, desk: Desk, remote: Remote
    ) -> None:
        self.charge(desk, remote.call, keep=0)
        self.charge(desk, remote.call, keep=timedelta(days=1))
        self.charge(desk, remote.call)
        assert (remote.calls, effects.get().prevented) == (2, 1)

    def test_a_job_waits_while_another_one_makes_the_call(self, desk: Desk, remote: Remote) -> None:
        outcomes = []

        def call() -> Any:
            outcomes.append(self.charge(desk, remote.call))
            return remote.call()

        assert self.charge(desk, call) == Succeeded(result='{"id":7}')
        (snoozed,) = outcomes
        assert snoozed == Snoozed(seconds=5.0, reason="another job makes the call 'order-7'")
        assert remote.calls == 1
        assert self.charge(desk, remote.call) == Succeeded(result='{"id":7}')
        assert remote.calls == 1

    def test_the_call_of_an_attempt_that_is_gone_is_made_by_the_next_job(
        self, desk: Desk, remote: Remote
    ) -> None:
        with declared(self.handler(remote.call), name="app.lost") as job_type:
            lost = enqueue_and_claim(job_type)
        assert progress.hold(lost, "order-7", 60.0) is None
        assert isinstance(self.charge(desk, remote.call), Snoozed)
        run_sql("UPDATE django_jobs_job SET attempt = attempt + 1 WHERE id = %s", [lost.id])
        assert self.charge(desk, remote.call) == Succeeded(result='{"id":7}')
        # The late answer of the one that was lost. The first one stays.
        assert progress.store_effect(lost, "order-7", 60.0, "8") == '{"id": 7}'

    def test_an_answer_is_the_first_one_although_its_attempt_was_lost(
        self, desk: Desk, remote: Remote
    ) -> None:
        def call() -> Any:
            run_sql("UPDATE django_jobs_job SET attempt = attempt + 1 WHERE status = 'running'")
            assert self.charge(desk, partial(self.charge_late, remote)) == Succeeded(result="8")
            return remote.call()

        assert self.charge(desk, call) == Succeeded(result="8")

    @staticmethod
    def charge_late(remote: Remote) -> int:
        """A second call, made because the attempt of the first one was taken for lost."""
        remote.call()
        return 8

    def test_a_call_that_raises_may_be_made_by_another_job_at_once(
        self, desk: Desk, remote: Remote
    ) -> None:
        inner = []

        def handler() -> Any:
            with pytest.raises(ConnectionError):
                self.handler(Remote(ConnectionError("no answer")).call)()
            inner.append(self.charge(desk, remote.call))
            return self.handler(remote.call)()

        assert desk.run(handler) == [Succeeded(result='{"id":7}')]
        assert inner == [Succeeded(result='{"id":7}')]
        assert remote.calls == 1

    def test_async_handlers_have_effects_too(self, desk: Desk, remote: Remote) -> None:
        async def call() -> Any:
            return remote.call()

        async def fails() -> Any:
            raise ConnectionError

        async def handler() -> Any:
            with pytest.raises(ConnectionError):
                await this_run().aonce("order-7", fails, scope="effect")
            return await this_run().aonce("order-7", call, scope="effect")

        assert desk.run(handler) == [Succeeded(result='{"id":7}')]
        assert self.charge(desk, remote.call) == Succeeded(result='{"id":7}')
        assert remote.calls == 1

    @pytest.mark.parametrize(
        "options, problem",
        [
            ({"scope": "order"}, r"scope is 'job' or 'effect', not 'order'"),
            ({"keep": "90d"}, r"once\(keep=\) takes a timedelta or a number of seconds, not '90d'"),
            ({"key": ""}, "1 to 200 characters, not one of 0"),
            ({"key": "effect:a", "scope": "job"}, "begin with 'effect:' are those of scope=\"ef"),
        ],
    )
    def test_what_cannot_be_one_is_refused_before_the_call(
        self, desk: Desk, remote: Remote, options: dict[str, Any], problem: str
    ) -> None:
        given = {"key": "order-7", "call": remote.call, "scope": "effect", **options}

        def handler() -> None:
            with pytest.raises(ValueError, match=problem):
                this_run().once(**given)

        assert desk.run(handler) == [Succeeded()]
        assert remote.calls == 0

    def test_a_job_without_another_attempt_has_none(self, desk: Desk, remote: Remote) -> None:
        (outcome,) = desk.run(self.handler(remote.call), delivery="at_most_once")
        assert isinstance(outcome, Failed)
        assert 'once(scope="effect") ends the attempt' in outcome.error.message
        assert remote.calls == 0


class TestACallOfTheOtherKind:
    """An async call given to ``once``, a plain one given to ``aonce``, and what is no call."""

    async def charge(self, remote: Remote) -> Any:
        """The async call."""
        return remote.call()

    def test_an_async_function_is_refused_before_any_lookup(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remote = Remote()
        monkeypatch.setattr(durable, "look_up", None)

        def handler() -> None:
            this_run().once("charge", partial(self.charge, remote))

        async def async_handler() -> None:
            handler()

        for outcome in desk.run(handler, async_handler):
            assert isinstance(outcome, Failed)
            assert outcome.error.message == (
                "once() got an async call; write `await run.aonce(key, call)`"
            )
        assert remote.calls == 0

    def test_a_call_that_returns_an_awaitable_leaves_no_receipt(self, desk: Desk) -> None:
        remote = Remote("paid")

        def handler() -> None:
            with pytest.raises(TypeError, match=r"await run\.aonce"):
                this_run().once("charge", lambda: self.charge(remote))

        async def async_handler() -> None:
            with pytest.raises(TypeError, match=r"await run\.aonce"):
                this_run().once("charge", lambda: asyncio.ensure_future(self.charge(remote)))
            await asyncio.sleep(0)

        async def mended() -> Any:
            return await this_run().aonce("charge", lambda: self.charge(remote))

        outcomes = desk.run(handler, async_handler, mended)
        assert outcomes == [Succeeded(), Succeeded(), Succeeded(result='"paid"')]
        assert remote.calls == 1

    def test_the_answer_of_a_plain_call_to_aonce_is_stored(self, desk: Desk) -> None:
        remote = Remote((7, "paid"))

        async def handler() -> Any:
            return await this_run().aonce("charge", remote.call)

        assert desk.run(handler, handler) == [Succeeded(result='[7,"paid"]')] * 2
        assert remote.calls == 1

    def test_an_uncallable_call_is_refused_before_any_lookup(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remote = Remote()
        monkeypatch.setattr(durable, "look_up", None)

        def handler() -> None:
            call: Any = 5
            with pytest.raises(TypeError, match=r"a function that makes the call, .* not a int"):
                this_run().once("charge", call)

        async def async_handler() -> None:
            call: Any = self.charge(remote)
            with pytest.raises(TypeError, match=r"makes the call, .* not a coroutine"):
                await this_run().aonce("charge", call)

        assert desk.run(handler, async_handler) == [Succeeded()] * 2
        assert remote.calls == 0
