"""What a worker costs that has nothing to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from .database import empty, execute, fetch
from .measuring import Figure, turns
from .workers import DEMO, environment, running_worker, stop

SECONDS = 20.0

# The least that a process of the same project can do: ask once a second.
POLLER = """
import sys, time, django
django.setup()
from django.db import connection
while True:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_jobs_queue")
    sys.stdout.write("asked\\n"); sys.stdout.flush()
    time.sleep(1)
"""


@dataclass(slots=True)
class Cost:
    """Of a tree of processes: transactions a second, percent of a core, megabytes."""

    transactions: float
    processor: float
    memory: float


def idle(times: int, scale: float) -> list[Figure]:
    """An idle worker of the demo project, its whole tree, beside one Django process of the same
    project that sends a SELECT each second."""
    seconds = max(SECONDS * scale, 2.0)
    ours, bare = [], []
    with _no_autovacuum():
        for _ in turns(times):
            empty()
            with running_worker(settings=DEMO) as worker:
                ours.append(_cost(worker.pid, seconds))
            with _poller() as poller:
                bare.append(_cost(poller.pid, seconds))
    partner = "one Django process that polls"
    return [
        Figure("idle: transactions of the tree", "a second",
               [cost.transactions for cost in ours], [cost.transactions for cost in bare],
               partner, "less", "2 for each of its 2 processes with a connection"),
        Figure("idle: processor, the tree", "% of a core",
               [cost.processor for cost in ours], [cost.processor for cost in bare],
               partner, "less", "0.5 %"),
        Figure("idle: proportional memory of the tree", "MB",
               [cost.memory for cost in ours], [cost.memory for cost in bare],
               partner, "less", "80 MB"),
    ]  # fmt: skip


def _cost(pid: int, seconds: float) -> Cost:
    time.sleep(2)  # the boot is not idleness
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    before, cpu, begun = _transactions(), _cpu(tree), time.monotonic()
    time.sleep(seconds)
    after, passed = _transactions(), time.monotonic() - begun
    return Cost(
        # Two of them were the questions.
        transactions=(after - before - 2) / passed,
        processor=(_cpu(tree) - cpu) / passed * 100,
        memory=sum(_proportional(process) for process in tree) / 1_048_576,
    )


def _cpu(tree: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in tree)


def _proportional(process: psutil.Process) -> int:
    """Shared pages divided among those that share them; Linux alone knows."""
    memory = process.memory_full_info()
    return int(getattr(memory, "pss", memory.rss))


def _transactions() -> int:
    """So far, on this database; in autocommit each statement is one."""
    # A session publishes its counters at most once a second, and only if it has read a table.
    execute("SELECT pg_stat_force_next_flush() FROM django_jobs_queue LIMIT 1")
    time.sleep(1.1)
    ((count,),) = fetch(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database "
        "WHERE datname = current_database()"
    )
    return int(count)


@contextmanager
def _poller() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", POLLER], env=environment(DEMO), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the process beside which idleness is measured has died")
        yield process
    finally:
        process.kill()
        process.communicate()
        stop(process)


@contextmanager
def _no_autovacuum() -> Iterator[None]:
    """Autovacuum's transactions would be counted as the worker's. Nobody else's server is told."""
    if "BENCHMARK_EMBEDDED" not in os.environ:
        yield
        return
    execute("ALTER SYSTEM SET autovacuum = off")
    execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        execute("ALTER SYSTEM RESET autovacuum")
        execute("SELECT pg_reload_conf()")
