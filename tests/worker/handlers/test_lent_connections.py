"""Sessions that are lent to the calls of async handlers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from django.db import DataError, InterfaceError, OperationalError, connection, transaction

from django_jobs.worker.handlers import lent_connections
from django_jobs.worker.handlers.lent_connections import (
    CallThreads,
    FreeThreads,
    HandlerCalls,
    Sessions,
)
from tests.app.models import Effect
from tests.factories import run_sql
from tests.patience import PATIENCE
from tests.worker.processes import until


@pytest.fixture
def sessions(transactional_db: None) -> Iterator[Sessions]:
    made = Sessions(2)
    yield made
    made.close_if_idle(0.0)


@pytest.fixture
def handler(sessions: Sessions) -> Iterator[Callable[[], HandlerCalls]]:
    """The calls of a new handler. All have ended when the test ends."""
    threads = CallThreads(sessions)
    made: list[HandlerCalls] = []

    def begin() -> HandlerCalls:
        made.append(HandlerCalls(threads))
        return made[-1]

    yield begin
    for calls in made:
        end(calls)


def end(calls: HandlerCalls) -> None:
    if (ended := calls.close()) is not None:
        ended.result(PATIENCE)


def backend() -> int:
    """The session in which a call runs."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def asked(calls: HandlerCalls, work: Callable[[], Any] = backend) -> Any:
    return calls.submit(work).result(PATIENCE)


def test_handlers_that_wait_hold_no_session(handler: Callable[[], HandlerCalls]) -> None:
    waiting = [handler() for _ in range(10)]
    assert len({asked(calls) for calls in waiting * 3}) == 1
    threads = {asked(calls, threading.get_ident) for calls in waiting}
    assert len(threads) == 10  # each has its own, with its state


def test_an_open_transaction_keeps_its_session_until_the_handler_ends(
    handler: Callable[[], HandlerCalls],
) -> None:
    first, second = handler(), handler()

    def begin() -> int:
        transaction.set_autocommit(False)
        Effect.objects.create(note="not committed")
        return backend()

    kept = asked(first, begin)
    assert asked(second) != kept
    assert asked(first) == kept
    assert asked(first, Effect.objects.count) == 1
    assert asked(second, Effect.objects.count) == 0
    end(first)
    assert asked(second, Effect.objects.count) == 0
    assert asked(handler(), lambda: connection.in_atomic_block) is False


def test_an_open_cursor_keeps_its_session_until_it_is_closed(
    handler: Callable[[], HandlerCalls],
) -> None:
    first, second = handler(), handler()
    cursor = asked(first, lambda: connection.cursor())
    kept = asked(first, lambda: cursor.execute("SELECT pg_backend_pid()").fetchone()[0])
    asked(second, lambda: transaction.set_autocommit(False))
    assert asked(second) != kept  # it keeps the other one
    assert asked(first) == kept
    asked(first, cursor.close)
    assert asked(handler()) == kept


def test_a_cursor_that_a_handler_leaves_open_ends_with_it(
    handler: Callable[[], HandlerCalls], sessions: Sessions
) -> None:
    calls, other = handler(), handler()
    cursor = asked(calls, lambda: connection.cursor())
    kept = asked(calls)
    end(calls)
    assert asked(other) == kept
    with pytest.raises(InterfaceError, match="the cursor is closed"):
        asked(other, lambda: cursor.execute("SELECT 1"))
    with FreeThreads(sessions) as threads:
        cursor = threads.submit(lambda: connection.cursor()).result(PATIENCE)
    with pytest.raises(InterfaceError, match="the cursor is closed"):
        asked(other, lambda: cursor.execute("SELECT 1"))


def test_a_cursor_of_an_earlier_handler_ends_no_transaction(
    handler: Callable[[], HandlerCalls],
) -> None:
    """Such as that of an iterator which the garbage collector finds."""
    Effect.objects.bulk_create(Effect(note=f"{number}") for number in range(3))
    calls, other = handler(), handler()
    left = asked(calls, lambda: Effect.objects.iterator(chunk_size=1))
    asked(calls, lambda: next(left))
    kept = asked(calls)
    end(calls)
    asked(other, lambda: transaction.set_autocommit(False))
    assert asked(other) == kept
    left.close()
    assert asked(other, Effect.objects.count) == 3


def test_handlers_that_keep_all_sessions_hold_up_others_for_a_while(
    handler: Callable[[], HandlerCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent_connections, "PATIENCE", 0.1)
    keepers = [handler() for _ in range(2)]
    for calls in keepers:
        asked(calls, lambda: run_sql("SELECT pg_advisory_lock(hashtext(pg_backend_pid()::text))"))
    other = handler()
    with pytest.raises(OperationalError, match="all 2 of this process are in use, or kept"):
        asked(other)
    monkeypatch.setattr(lent_connections, "PATIENCE", 60.0)
    waits: Future[Any] = other.submit(backend)
    end(keepers[0])
    assert waits.result(PATIENCE)


def test_a_call_whose_handler_has_ended_waits_for_no_session(
    handler: Callable[[], HandlerCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by its time-out: the supervisor kills the process if that lasts a second."""
    monkeypatch.setattr(lent_connections, "PATIENCE", 60.0)
    for calls in [handler() for _ in range(2)]:
        asked(calls, lambda: transaction.set_autocommit(False))
        asked(calls)
    other = handler()
    waits: Future[Any] = other.submit(backend)
    ended = other.close()
    assert ended is not None
    with pytest.raises(OperationalError, match="the handler has ended while it waited"):
        waits.result(PATIENCE)
    ended.result(PATIENCE)
    assert not ended.cancel()


def test_a_session_of_one_database_wakes_who_waits_for_it(sessions: Sessions) -> None:
    def never() -> bool:
        return False

    for alias in ("one", "other"):
        for _ in range(2):
            assert sessions.take(alias, never) is None
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(sessions.take, "other", never)
        until(lambda: len(sessions._changed._waiters) == 1)  # type: ignore[attr-defined]
        second = threads.submit(sessions.take, "one", never)
        until(lambda: len(sessions._changed._waiters) == 2)  # type: ignore[attr-defined]
        sessions.give_back("one", None)
        assert second.result(PATIENCE) is None
        sessions.give_back("other", None)
        assert first.result(PATIENCE) is None


def test_an_error_in_a_savepoint_costs_no_transaction_over_several_calls(
    handler: Callable[[], HandlerCalls],
) -> None:
    calls, outer, inner = handler(), transaction.atomic(), transaction.atomic()
    asked(calls, outer.__enter__)
    asked(calls, lambda: Effect.objects.create(note="kept"))
    asked(calls, inner.__enter__)
    with pytest.raises(DataError) as failed:
        asked(calls, lambda: run_sql("SELECT 1 / 0"))
    asked(calls, lambda: inner.__exit__(DataError, failed.value, None))
    asked(calls, lambda: outer.__exit__(None, None, None))
    end(calls)
    assert Effect.objects.filter(note="kept").exists()


def test_a_session_that_the_server_ended_is_replaced(handler: Callable[[], HandlerCalls]) -> None:
    calls, other = handler(), handler()
    ended = asked(calls)
    run_sql("SELECT pg_terminate_backend(%s, 60000)", [ended])
    assert asked(other) != ended

    def end_own() -> None:
        run_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    for _ in range(5):  # more often than there are sessions
        with pytest.raises(OperationalError):
            asked(calls, end_own)
        assert asked(calls)
        assert asked(other)


def test_calls_in_other_threads_leave_nothing_behind(sessions: Sessions) -> None:
    with FreeThreads(sessions) as threads:
        for _ in range(20):
            setting = threads.submit(lambda: run_sql("SELECT current_setting('app.mine', true)"))
            assert setting.result(PATIENCE)[0][0] in (None, "")
            threads.submit(lambda: run_sql("SET app.mine = 'left'")).result(PATIENCE)


def test_a_call_in_another_thread_finds_a_session_while_handlers_keep_theirs(
    handler: Callable[[], HandlerCalls], sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent_connections, "PATIENCE", 0.1)
    keepers = [handler() for _ in range(2)]
    kept = {
        asked(calls, lambda: (transaction.set_autocommit(False), backend())[1]) for calls in keepers
    }
    with FreeThreads(sessions) as threads:
        assert threads.submit(backend).result(PATIENCE) not in kept
    with pytest.raises(OperationalError, match="all 2 of this process"):
        asked(handler())


def test_a_handler_that_has_ended_makes_no_more_calls(handler: Callable[[], HandlerCalls]) -> None:
    calls = handler()
    end(calls)
    with pytest.raises(RuntimeError, match="the handler has ended"):
        calls.submit(backend)


def mark() -> None:
    """As a project does that keeps its tenant on the wrapper. No query follows."""
    connection.tenant = "acme"  # type: ignore[attr-defined]
    connection.force_debug_cursor = True


def marks() -> tuple[str | None, bool]:
    return getattr(connection, "tenant", None), connection.force_debug_cursor


@pytest.mark.parametrize("before", [backend, marks])
def test_attributes_that_a_handler_has_set_are_gone(
    handler: Callable[[], HandlerCalls], before: Callable[[], Any]
) -> None:
    first = handler()
    asked(first, before)
    thread = asked(first, threading.get_ident)
    asked(first, mark)
    assert asked(first, marks) == ("acme", True)
    end(first)
    second = handler()
    assert asked(second, threading.get_ident) == thread
    assert asked(second, marks) == (None, False)


SLEEPS = """
SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND query = 'SELECT pg_sleep(3600)' AND state = 'active'
"""


def test_a_session_whose_statement_was_cancelled_is_lent_to_no_other_handler(
    handler: Callable[[], HandlerCalls],
) -> None:
    """The cancel may arrive late."""
    first, second = handler(), handler()
    pids = [asked(first), asked(second)]
    assert pids[0] == pids[1]
    late = first.submit(run_sql, "SELECT pg_sleep(3600)")
    until(lambda: run_sql(SLEEPS))
    second.cancel()
    assert run_sql(SLEEPS), "of another handler"
    first.cancel()
    with pytest.raises(OperationalError, match="canceling statement"):
        late.result(PATIENCE)
    assert asked(first) == pids[0], "it may clean up there"
    assert asked(second) != pids[0]
    end(first)
    assert asked(handler()) != pids[0]


def test_a_statement_in_a_free_thread_is_cancelled_with_those_of_its_handler(
    sessions: Sessions,
) -> None:
    def begin() -> tuple[HandlerCalls, Future[Any]]:
        calls = CallThreads(sessions).enter()
        return calls, threads.submit(run_sql, "SELECT pg_sleep(3600)")

    with FreeThreads(sessions) as threads:
        calls, late = copy_context().run(begin)
        until(lambda: run_sql(SLEEPS))
        calls.cancel()
        with pytest.raises(OperationalError, match="canceling statement"):
            late.result(PATIENCE)
