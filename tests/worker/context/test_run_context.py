"""What a handler tells of its run: progress, checkpoints, and when they are written."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from pytest_django.fixtures import DjangoAssertNumQueries

from django_jobs import Backoff, LeaseLost, PayloadError, RunContext, chain, current_run
from django_jobs.api.editing import edit_job
from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Failed, Succeeded
from django_jobs.lifecycle import progress
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Progress
from django_jobs.testing import run_jobs
from django_jobs.worker.context import progress as context_progress
from tests.app.jobs import noop
from tests.app.long_jobs import report_async, this_run
from tests.app.models import Effect
from tests.factories import (
    another_connection,
    claim_ready,
    declared,
    enqueue_and_claim,
    failure,
    make_dead,
    open_elsewhere,
    register_worker,
    run_sql,
    settle_one,
)
from tests.patience import PATIENCE
from tests.worker.attempts import Desk, next_attempt
from tests.worker.processes import until


def result_of(outcome: Any) -> str | None:
    assert isinstance(outcome, Succeeded), outcome
    return outcome.result


def fail() -> None:
    raise ConnectionError("after it reported")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reports each statement wrote."""
    counts: list[int] = []

    def counted(reports: Any) -> Any:
        counts.append(len(reports))
        return progress.report(reports)

    monkeypatch.setattr(context_progress, "report", counted)
    return counts


def test_current_run_is_none_outside_a_worker() -> None:
    assert current_run() is None


@pytest.mark.parametrize("scope", ["queue", "tenant"])
def test_a_handler_sees_its_key_as_it_was_given(desk: Desk, scope: Any) -> None:
    def handler() -> str | None:
        return this_run().idempotency_key

    with declared(handler, name="app.keyed") as keyed:
        keyed.using(idempotency_key="k", key_scope=scope, tenant="acme").enqueue()
        admit({"default": 1}, FairShares())
        (held,) = claim_ready(register_worker())
        assert result_of(desk.make(held)) == '"k"'


@pytest.mark.django_db
def test_a_handler_sees_one_key_in_all_attempts_and_after_a_replay() -> None:
    """A provider that gets it as its own key does nothing twice."""
    seen: list[tuple[int, str | None]] = []

    def handler() -> None:
        seen.append((this_run().attempt, this_run().idempotency_key))
        if len(seen) < 3:
            raise ValueError

    now = Backoff.fixed(0)
    with declared(handler, name="app.paid", max_attempts=2, backoff=now) as paid:
        job = paid.using(idempotency_key="order-7").enqueue()
        run_jobs()
        assert Job.objects.get().status == "dead"
        assert job_operations.replay([job.pk], check=lambda job: None).done
        run_jobs()
    assert Job.objects.get().status == "succeeded"
    assert seen == [(1, "order-7"), (2, "order-7"), (3, "order-7")]


def test_a_run_is_shown_without_its_payload(desk: Desk) -> None:
    def handler() -> str:
        return repr(this_run())

    (outcome,) = desk.run(handler)
    assert "<RunContext app.handler #" in str(result_of(outcome))


def test_its_headers_are_those_of_the_enqueue_after_an_edit_and_a_replay(desk: Desk) -> None:
    def handler(number: int = 0) -> Any:
        return this_run().headers

    with declared(handler, name="app.headers") as job_type:
        dead = make_dead(job_type.using(headers={"trace": "7"}))
        assert edit_job(dead.pk, payload={"number": 1}).done == [dead.pk]
        assert Job.objects.get().headers.keys() == {"trace", "edits", "replays"}
        (held,) = claim_ready(register_worker())
        outcome = desk.make(held)
    assert result_of(outcome) == '{"trace":"7"}'


def test_reports_are_visible_while_the_handler_runs(desk: Desk) -> None:
    def handler() -> None:
        run = this_run()
        run.progress(0.25, "a quarter")
        until(lambda: Progress.objects.filter(fraction=0.25).exists())
        run.checkpoint({"row": 7})
        row = until(lambda: Progress.objects.filter(checkpoint__isnull=False).first())
        assert (row.fraction, row.note, row.checkpoint) == (0.25, "a quarter", {"row": 7})
        assert (row.job_id, row.attempt) == (run.job_id, 1)

    assert desk.run(handler) == [Succeeded()]
    assert desk.heard == 2


@pytest.mark.parametrize(
    "fraction", [-0.01, 1.01, float("nan"), float("inf"), "half", None, 10**400]
)
def test_progress_that_is_not_a_fraction_is_refused(desk: Desk, fraction: Any) -> None:
    def handler() -> None:
        with pytest.raises(ValueError, match=f"progress is a fraction .*, not {fraction!r}"):
            this_run().progress(fraction)

    assert desk.run(handler) == [Succeeded()]
    assert not Progress.objects.exists()


def test_a_note_is_cut_and_cleaned(desk: Desk) -> None:
    def handler() -> None:
        this_run().progress(1, "nul \x00 surrogate \ud800 " + "long " * 1000)
        fail()

    desk.run(handler)
    note = Progress.objects.get().note
    assert note.startswith("nul \\x00 surrogate \\xd800 long long")
    assert (len(note), note[-1]) == (200, "…")


def test_no_note_is_an_empty_one(desk: Desk) -> None:
    def handler() -> None:
        this_run().progress(1, None)
        fail()

    desk.run(handler)
    assert Progress.objects.get().note == ""


def test_an_invalid_checkpoint_is_refused_and_the_last_one_stays(desk: Desk, settings: Any) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_PAYLOAD_BYTES": 100}

    def handler() -> None:
        this_run().checkpoint([1])
        for bad in ({1}, "x" * 200, float("nan")):
            with pytest.raises(PayloadError, match=r"app\.handler: checkpoint: "):
                this_run().checkpoint(bad)
        fail()

    desk.run(handler)
    assert Progress.objects.get().checkpoint == [1]


@pytest.mark.parametrize("data", [0, "", None, [], {"a": [1, 2.5, "ä"]}])
def test_the_next_attempt_gets_the_saved_checkpoint(desk: Desk, data: Any) -> None:
    def first() -> None:
        assert this_run().saved_checkpoint is None
        this_run().checkpoint("old")
        this_run().checkpoint(data)
        fail()

    def second() -> None:
        assert this_run().saved_checkpoint == data
        this_run().checkpoint("newer")
        assert this_run().saved_checkpoint == data  # what was saved before, read once

    _, outcome = desk.run(first, second)
    assert outcome == Succeeded()


def test_twenty_thousand_reports_are_a_write_a_second(desk: Desk, written: list[int]) -> None:
    began = time.monotonic()

    def handler() -> None:
        for number in range(20_000):
            this_run().progress(number / 20_000)
        fail()

    desk.run(handler)
    assert 1 <= len(written) <= 3 + (time.monotonic() - began) / context_progress.EVERY
    assert Progress.objects.get().fraction == 19_999 / 20_000


def test_the_reports_of_many_jobs_are_written_in_one_statement(
    desk: Desk, written: list[int]
) -> None:
    held, all_are_there = [enqueue_and_claim() for _ in range(20)], threading.Event()
    desk.reporter.background.submit(all_are_there.wait)  # or it writes the first ones meanwhile
    for one in held:
        desk.reporter.progress(desk.begin(one), 0.5, "")
    all_are_there.set()
    until(lambda: Progress.objects.count() == 20)
    assert written == [20]


def test_a_success_writes_nothing_more(desk: Desk, written: list[int]) -> None:
    def handler() -> None:
        this_run().progress(0.1)
        until(lambda: written)
        this_run().progress(0.2)

    assert desk.run(handler) == [Succeeded()]
    desk.reporter.background.submit(lambda: None).result(PATIENCE)
    assert Progress.objects.get().fraction == 0.1
    assert not desk.reporter._open


def test_a_handler_that_lost_its_job_gets_lease_lost_at_its_next_report(desk: Desk) -> None:
    with declared(lost_while_reporting) as job_type:
        held = enqueue_and_claim(job_type)
        with pytest.raises(LeaseLost, match=f"job {held.id} attempt 1 is no longer"):
            desk.make(held)
    assert not desk.reporter._open


def lost_while_reporting() -> None:
    run = this_run()
    run_sql("UPDATE django_jobs_job SET attempt = 2")
    until(lambda: run.progress(0.5))  # until it raises
    raise AssertionError("unreachable")


def test_a_late_report_does_not_overwrite_one_of_the_next_attempt(desk: Desk) -> None:
    held = enqueue_and_claim()
    later = next_attempt(held)
    assert progress.report([progress.ProgressReport(job=held, fraction=0.1)]) == set()
    assert progress.report([progress.ProgressReport(job=later, fraction=0.2)]) == {(held.id, 2)}


class TestInATransaction:
    """A checkpoint commits and rolls back with what it speaks of."""

    def test_it_is_rolled_back_with_the_effect(self, desk: Desk) -> None:
        def first() -> None:
            for number in range(3):
                with transaction.atomic():
                    Effect.objects.create(note=str(number))
                    this_run().checkpoint(number)
                    if number == 2:
                        fail()

        def second() -> object:
            return this_run().saved_checkpoint

        failed, outcome = desk.run(first, second)
        assert isinstance(failed, Failed)
        assert result_of(outcome) == "1"
        assert Effect.objects.count() == 2

    def test_it_is_invisible_before_the_commit(self, desk: Desk) -> None:
        def handler() -> None:
            with transaction.atomic():
                this_run().checkpoint(1)
                with another_connection() as other, other.cursor() as cursor:
                    cursor.execute("SELECT checkpoint FROM django_jobs_progress")
                    assert cursor.fetchall() == [(None,)]
            assert Progress.objects.get().checkpoint == 1

        assert desk.run(handler) == [Succeeded()]

    def test_an_older_checkpoint_outside_is_written_before_one_inside(self, desk: Desk) -> None:
        def rolls_back() -> None:
            this_run().checkpoint("outside")
            with transaction.atomic():
                this_run().checkpoint("inside")
                fail()

        def commits() -> object:
            assert this_run().saved_checkpoint == "outside"
            this_run().checkpoint("outside again")
            with transaction.atomic():
                this_run().checkpoint("inside")
            fail()
            return None

        def tells() -> object:
            return this_run().saved_checkpoint

        assert result_of(desk.run(rolls_back, commits, tells)[-1]) == '"inside"'

    def test_progress_is_reported_without_waiting_for_the_lock(self, desk: Desk) -> None:
        other = enqueue_and_claim(noop)

        def handler() -> None:
            with transaction.atomic():
                this_run().progress(0.5, "inside")
                this_run().checkpoint(1)
                this_run().progress(0.6)
                desk.reporter.progress(desk.begin(other), 0.9, "")
                until(lambda: Progress.objects.filter(pk=other.id).exists())
            row = Progress.objects.filter(pk=this_run().job_id)
            until(lambda: row.filter(fraction=0.6, checkpoint=1).exists())

        assert desk.run(handler) == [Succeeded()]

    def test_without_autocommit_it_is_written_there_too(self, desk: Desk) -> None:
        def first() -> None:
            transaction.set_autocommit(False)
            this_run().checkpoint("committed")
            transaction.commit()
            this_run().checkpoint("never")
            transaction.rollback()
            transaction.set_autocommit(True)
            fail()

        def second() -> object:
            return this_run().saved_checkpoint

        assert result_of(desk.run(first, second)[-1]) == '"committed"'

    def test_a_handler_that_lost_its_job_is_rolled_back(self, desk: Desk) -> None:
        def handler() -> None:
            with transaction.atomic():
                Effect.objects.create(note="of a late worker")
                this_run().checkpoint(1)
                with ThreadPoolExecutor(1) as elsewhere:
                    elsewhere.submit(_take_away).result()
                this_run().checkpoint(2)

        with pytest.raises(LeaseLost):
            desk.run(handler)
        assert not Effect.objects.exists()

    def test_the_next_attempt_waits_for_a_transaction_with_a_checkpoint(self, desk: Desk) -> None:
        held = enqueue_and_claim()
        desk.reporter.progress(desk.begin(held), 0.1, "")
        until(lambda: Progress.objects.exists())
        with (
            open_elsewhere("UPDATE django_jobs_progress SET checkpoint = '52'") as other,
            ThreadPoolExecutor(1) as elsewhere,
        ):
            later = next_attempt(held)
            asked = elsewhere.submit(_saved_checkpoint, desk, later)
            until(_somebody_waits_for_a_lock)
            other.commit()
            assert asked.result(PATIENCE) == 52
        assert progress.report([progress.ProgressReport(job=held, fraction=0.2)]) == set()

    def test_exactly_once_rolls_its_checkpoint_back(self, desk: Desk) -> None:
        def first() -> None:
            this_run().checkpoint(1)
            this_run().progress(0.5)
            fail()

        def second() -> object:
            return this_run().saved_checkpoint

        _, settled = desk.run(first, second, delivery="exactly_once")
        assert getattr(settled, "decision", None) is not None
        assert Progress.objects.get().fraction == 0.5
        assert Progress.objects.get().checkpoint is None


def _take_away() -> None:
    try:
        run_sql("UPDATE django_jobs_job SET attempt = 2")
    finally:
        connection.close()


def _saved_checkpoint(desk: Desk, held: ClaimedJob) -> Any:
    try:
        return desk.reporter.saved_checkpoint(desk.begin(held))
    finally:
        connection.close()


def _somebody_waits_for_a_lock() -> bool:
    return bool(
        run_sql(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        )
    )


def test_a_replay_of_a_dead_job_keeps_the_checkpoint(desk: Desk) -> None:
    def handler() -> object:
        if this_run().attempt == 1:
            this_run().checkpoint(52)
            fail()
        return this_run().saved_checkpoint

    with declared(handler, name="app.handler") as job_type:
        held = enqueue_and_claim(job_type)
        desk.make(held)
        settle_one(held, failure(final=True))
        job_operations.replay([held.id], check=lambda job: None)
        (again,) = claim_ready(held.worker)
        assert result_of(desk.make(again)) == "52"


def test_async_handlers_report_and_read_the_saved_checkpoint(desk: Desk) -> None:
    held = enqueue_and_claim(report_async)
    assert isinstance(desk.make(held), Failed)
    assert (Progress.objects.get().fraction, Progress.objects.get().note) == (0.999, "on the loop")
    assert result_of(desk.make(next_attempt(held))) == '{"number":999}'


def test_an_outage_delays_the_end_of_an_attempt_for_a_bounded_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(reports: Any) -> Any:
        raise OperationalError("away")

    monkeypatch.setattr(context_progress, "report", away)
    monkeypatch.setattr(context_progress, "PATIENCE", 0.2)

    def handler() -> None:
        this_run().progress(0.5)
        fail()

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Failed)


def test_reports_are_written_once_the_database_is_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def away(reports: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("away")
        return progress.report(reports)

    monkeypatch.setattr(context_progress, "report", away)

    def handler() -> None:
        this_run().progress(0.5)
        until(lambda: Progress.objects.filter(fraction=0.5).exists())

    assert desk.run(handler) == [Succeeded()]


def test_a_report_that_fails_does_not_affect_its_handler(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(reports: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(context_progress, "report", broken)

    def handler() -> None:
        this_run().progress(0.5)
        fail()

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "after it reported"


USES_AFTERWARDS: dict[str, Callable[[RunContext], Any]] = {
    "progress": lambda run: run.progress(0.5, "late"),
    "checkpoint": lambda run: run.checkpoint(1),
    "saved_checkpoint": lambda run: run.saved_checkpoint,
    "iterate": lambda run: run.iterate(Effect.objects.all()),
    "once": lambda run: run.once("key", lambda: 1 / 0),
    "aonce": lambda run: asyncio.run(run.aonce("key", send_late)),
    "sleep": lambda run: run.sleep("key", 1),
    "wait_for": lambda run: run.wait_for("name"),
    "spawn": lambda run: run.spawn(noop, [{}]),
    "a result": lambda run: run.results["step"],
    "a result, async": lambda run: asyncio.run(run.results.aget("step")),
    "results.get": lambda run: run.results.get("step"),
    "in results": lambda run: "step" in run.results,
    "results": lambda run: list(run.results),
    "len of results": lambda run: len(run.results),
    "children": lambda run: list(run.children()),
    "children, async": lambda run: asyncio.run(children_of(run)),
}


async def children_of(run: RunContext) -> list[Any]:
    return [child async for child in run.children()]


async def send_late() -> None:
    raise AssertionError("nobody calls this")


@pytest.mark.parametrize("use", USES_AFTERWARDS.values(), ids=USES_AFTERWARDS)
@pytest.mark.parametrize("handler", [lambda: None, fail], ids=["succeeded", "failed"])
def test_a_run_context_kept_after_its_attempt_raises_and_leaks_nothing(
    desk: Desk, handler: Callable[[], None], use: Callable[[RunContext], Any]
) -> None:
    kept: list[RunContext] = []

    def keep() -> None:
        run = this_run()
        run.progress(0.1)
        kept.append(run)
        assert not run.should_stop()
        handler()

    desk.run(keep)
    heard, (run,) = desk.heard, kept
    for _ in range(3):
        with pytest.raises(RuntimeError, match="has ended"):
            use(run)
    assert run.should_stop()
    assert run.attempt == 1
    assert desk.heard == heard  # it would keep another handler from being silent
    assert not desk.reporter._open


def test_what_a_run_context_gave_raises_after_its_attempt(
    desk: Desk, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    kept: list[Any] = []

    def keep() -> None:
        run = this_run()
        kept.extend([run.results, run.children(), iter(run.children())])

    desk.run(keep)
    results, children, iterator = kept
    with django_assert_num_queries(0):
        for use in (
            lambda: results["step"],
            lambda: dict(results),
            lambda: list(children),
            lambda: next(iterator),
        ):
            with pytest.raises(RuntimeError, match="has ended"):
                use()


def test_a_result_that_was_read_before_is_not_given_afterwards(desk: Desk) -> None:
    run = chain(noop.step(), noop.step()).start()
    settle_one(*claim_ready(register_worker()), Succeeded(result="7"))
    (held,) = claim_ready(register_worker())
    attempt = desk.begin(held)
    results = RunContext(attempt).results
    name = str(run.steps.get(status="succeeded").step)
    assert results[name] == 7
    desk.reporter.end(attempt, Succeeded())
    with pytest.raises(RuntimeError, match="has ended"):
        results[name]
