"""What a statement of the worker's own may take, and what does not count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connections, transaction

from django_jobs.worker import statement_timeout
from django_jobs.worker.connections import retry_while_disconnected
from django_jobs.worker.statement_timeout import StatementTimedOut, StatementTimeout
from tests.factories import run_sql
from tests.patience import UNBOUNDED
from tests.worker.attempts import in_own_session
from tests.worker.firing import each_second, until_fired, until_fires_on
from tests.worker.processes import BEATS_OFTEN, Start, until

SECONDS = 2.0


@pytest.fixture
def deadline() -> Iterator[StatementTimeout]:
    """One that is enforced, as a worker's main thread does it."""
    made, ended = StatementTimeout(SECONDS), threading.Event()

    def enforce() -> None:
        while not ended.wait(0.05):
            made.enforce()

    enforcing = threading.Thread(target=enforce)
    enforcing.start()
    yield made
    ended.set()
    enforcing.join()


def nap(seconds: float) -> None:
    run_sql("SELECT pg_sleep(%s)", [seconds])


@pytest.mark.django_db(transaction=True)
def test_work_of_many_statements_over_a_slow_line_completes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four round trips of 0.8 s for a deadline of 2, and 2.4 s to connect, by a clock of ours."""
    now, deadline = 1_000.0, StatementTimeout(SECONDS)
    monkeypatch.setattr(statement_timeout, "time", SimpleNamespace(monotonic=lambda: now))

    def take(seconds: float) -> None:
        nonlocal now
        now += seconds
        deadline.enforce()

    def over_a_slow_line(wrapper: Any) -> None:
        connect = wrapper.connect

        def slowly() -> None:
            take(1.2 * SECONDS)
            connect()

        def statement(execute: Callable[..., Any], *arguments: Any) -> Any:
            answer = execute(*arguments)
            take(0.4 * SECONDS)
            return answer

        wrapper.connect = slowly
        wrapper.execute_wrappers.append(statement)

    def work() -> str | None:
        over_a_slow_line(connections["default"])

        def statements() -> str:
            for _ in range(4):
                nap(0)
            return "done"

        return retry_while_disconnected(statements, what="claim", deadline=deadline)

    assert in_own_session(work) == "done"
    assert now > 1_000 + 2 * SECONDS
    assert not deadline.passed


@pytest.mark.django_db(transaction=True)
def test_a_statement_that_takes_too_long_is_cancelled(deadline: StatementTimeout) -> None:
    def work() -> bool:
        with pytest.raises(StatementTimedOut):
            retry_while_disconnected(lambda: nap(600), what="claim", deadline=deadline)
        return True

    assert in_own_session(work)


@pytest.mark.processes
def test_a_maintenance_task_that_waits_for_a_lock_delays_no_schedule(
    start_worker: Start,
) -> None:
    schedule = each_second()
    worker = start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    until_fired(schedule)
    with transaction.atomic():
        run_sql("LOCK TABLE django_jobs_receipt IN ACCESS EXCLUSIVE MODE")
        # If retention ran before the lock, its next run is within a minute.
        until(lambda: "event=maintenance_failed" in worker.text(), UNBOUNDED)
        until_fires_on(schedule)
    assert "event=heartbeat_hangs" not in worker.text()
