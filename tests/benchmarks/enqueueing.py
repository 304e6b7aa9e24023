"""How fast jobs are written: one by one, in bulk, by many clients at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from django_jobs.lifecycle import enqueueing
from tests.app.jobs import noop

from . import raw
from .database import empty
from .measuring import Figure, percentile, repeat
from .workers import running_worker


def one_by_one(count: int, enqueue: Callable[[], object] = noop.enqueue) -> float:
    """Jobs a second, each its own transaction."""
    empty()
    begun = time.perf_counter()
    for _ in range(count):
        enqueue()
    return count / (time.perf_counter() - begun)


def in_transaction() -> None:
    """As a view does it."""
    with transaction.atomic():
        noop.enqueue()


def in_transactions(times: int, scale: float) -> list[Figure]:
    """One job a transaction, as a web request enqueues."""
    count = max(int(2_000 * scale), 10)

    def limit() -> float:
        empty()
        return raw.insert_and_commit(count)

    values, raws = repeat(times, lambda: one_by_one(count, in_transaction), limit)
    name = f"enqueue of {count:,}, one transaction each"
    return [Figure(name, "jobs/s", values, raws, "INSERT + COMMIT")]


def processor_time(times: int, scale: float) -> list[Figure]:
    """Of the client, for one job: what a call adds to its statement. Inside a transaction;
    ``aenqueue`` without one, since Django has none for async code."""
    count = max(int(200 * scale), 20)
    sql, parameters = _statement()
    plain = raw.connect()

    def by_psycopg() -> None:
        plain.execute(sql, parameters).fetchone()

    def by_django() -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            cursor.fetchone()

    def inside(block: AbstractContextManager[Any], call: Callable[[], Any]) -> float:
        with block:
            begun = time.process_time()
            for _ in range(count):
                call()
            return _microseconds(begun, count)

    async def awaited(call: Callable[[], Awaitable[Any]]) -> float:
        await call()  # in a thread that connects
        begun = time.process_time()
        for _ in range(count):
            await call()
        spent = _microseconds(begun, count)
        await sync_to_async(connections.close_all)()
        return spent

    empty()
    django, enqueued, psycopg, awaited_django, awaited_enqueued = repeat(
        3 * times,
        lambda: inside(transaction.atomic(), by_django),
        lambda: inside(transaction.atomic(), noop.enqueue),
        lambda: inside(plain.transaction(), by_psycopg),
        lambda: asyncio.run(awaited(sync_to_async(by_django))),
        lambda: asyncio.run(awaited(noop.aenqueue)),
    )
    plain.close()
    name, cursor = "processor time of", "its statement by Django's cursor"
    return [
        Figure(f"{name} an enqueue", "µs", enqueued, django, cursor, "less", "20 µs more"),
        Figure(f"{name} its statement", "µs", django, psycopg, "plain psycopg", "less"),
        Figure(f"{name} an aenqueue", "µs", awaited_enqueued, awaited_django, cursor, "less"),
    ]


def _statement() -> tuple[str, Any]:
    """What an enqueue executes, and its parameters."""
    executed: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        executed.append((sql, parameters))
        return execute(sql, parameters, many, context)

    noop.enqueue()  # reads the queue
    with connection.execute_wrapper(note):
        noop.enqueue()
    return executed[0]


def _microseconds(begun: float, count: int) -> float:
    return (time.process_time() - begun) / count * 1e6


def in_bulk(times: int, scale: float) -> list[Figure]:
    """One call of ``enqueue_many`` with a list, with and without idempotency keys."""
    count = int(100_000 * scale)

    def ours() -> float:
        empty()
        begun = time.perf_counter()
        noop.enqueue_many([{} for _ in range(count)])
        return count / (time.perf_counter() - begun)

    def with_keys() -> float:
        empty()
        keys = [f"key-{number}" for number in range(count)]
        begun = time.perf_counter()
        noop.enqueue_many([{} for _ in range(count)], idempotency_keys=keys)
        return count / (time.perf_counter() - begun)

    def limit() -> float:
        empty()
        return raw.copy(count)

    values, keyed, raws = repeat(times, ours, with_keys, limit)
    name = f"enqueue_many of {count:,}"
    return [
        Figure(f"{name}, from a list", "jobs/s", values, raws, "COPY", bar="60,000 jobs/s"),
        Figure(f"{name}, each with a key", "jobs/s", keyed, raws, "COPY"),
    ]


def by_many_clients(times: int, scale: float) -> list[Figure]:
    """64 threads enqueue while a worker drains: the p99 of an enqueue, with and without NOTIFY."""
    clients, each = 64, max(int(60 * scale), 5)
    values, raws = repeat(
        times, lambda: _p99(clients, each, notify=True), lambda: _p99(clients, each, notify=False)
    )
    name = f"p99 of an enqueue by {clients} clients beside a worker"
    return [Figure(name, "ms", values, raws, "without NOTIFY", better="less")]


def _p99(clients: int, each: int, *, notify: bool) -> float:
    empty()
    seconds: list[float] = []
    all_connected = threading.Barrier(clients)

    def client() -> None:
        try:
            connection.ensure_connection()  # the opening of a connection is not an enqueue
            all_connected.wait(30)
            for _ in range(each):
                begun = time.perf_counter()
                with transaction.atomic():
                    noop.enqueue()
                seconds.append(time.perf_counter() - begun)
        finally:
            connections.close_all()

    notify = enqueueing.notify_after_commit
    with running_worker():
        try:
            if not notify:
                enqueueing.notify_after_commit = lambda queue, connection=None: None
            threads = [threading.Thread(target=client) for _ in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            enqueueing.notify_after_commit = notify
    if len(seconds) != clients * each:
        raise RuntimeError(f"{clients * each - len(seconds)} enqueues failed")
    return percentile(seconds, 0.99) * 1_000
