"""How fast jobs are written: one by one, in bulk, by many clients at once."""

from __future__ import annotations

import threading
import time

from django.db import connection, connections, transaction

from django_jobs.lifecycle import enqueueing
from tests.app.jobs import noop

from . import raw
from .database import empty
from .measuring import Figure, percentile, repeat
from .workers import running_worker


def one_by_one(times: int, scale: float) -> list[Figure]:
    """One job a transaction, as a web request enqueues."""
    count = int(2_000 * scale)

    def ours() -> float:
        empty()
        begun = time.perf_counter()
        for _ in range(count):
            with transaction.atomic():
                noop.enqueue()
        return count / (time.perf_counter() - begun)

    def limit() -> float:
        empty()
        return raw.insert_and_commit(count)

    values, raws = repeat(times, ours, limit)
    name = f"enqueue of {count:,}, each its own transaction"
    return [Figure(name, "jobs/s", values, raws, "INSERT + COMMIT", bar="0.7 of raw")]


def in_bulk(times: int, scale: float) -> list[Figure]:
    """One call of ``enqueue_many``, with and without idempotency keys."""
    count = int(100_000 * scale)

    def ours() -> float:
        empty()
        begun = time.perf_counter()
        noop.enqueue_many({} for _ in range(count))
        return count / (time.perf_counter() - begun)

    def with_keys() -> float:
        empty()
        keys = [f"key-{number}" for number in range(count)]
        begun = time.perf_counter()
        noop.enqueue_many(({} for _ in range(count)), idempotency_keys=keys)
        return count / (time.perf_counter() - begun)

    def limit() -> float:
        empty()
        return raw.copy(count)

    values, keyed, raws = repeat(times, ours, with_keys, limit)
    name = f"enqueue_many of {count:,}"
    return [
        Figure(name, "jobs/s", values, raws, "COPY", bar="at least 60,000 and 0.4 of raw"),
        Figure(f"{name} with keys", "jobs/s", keyed, raws, "COPY"),
    ]


def by_many_clients(times: int, scale: float) -> list[Figure]:
    """64 threads enqueue while a worker drains: the p99 of an enqueue, with and without NOTIFY."""
    clients, each = 64, max(int(60 * scale), 5)
    values, raws = repeat(
        times, lambda: _p99(clients, each, notify=True), lambda: _p99(clients, each, notify=False)
    )
    name = f"p99 of an enqueue by {clients} clients beside a worker"
    return [Figure(name, "ms", values, raws, "without NOTIFY", better="less", bar="2 times")]


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
                enqueueing.notify_after_commit = lambda queue: None
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
