"""PgQueuer on the same machine in the same run, where its extra is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import partial
from statistics import median
from typing import Any

from tests.app.jobs import noop

from . import raw
from .draining import drain, raw_drain
from .enqueueing import one_by_one
from .latency import LINGERS, pickups
from .measuring import Figure, percentile, progress, repeat
from .workers import environment, stop

NEEDED = ("pgqueuer", "asyncpg", "uvloop")
BATCHES = (100, 200)
"""Which is faster changes with the machine; the better median counts."""


def pgqueuer(times: int, scale: float) -> list[Figure]:
    """A drain of no-op jobs by PgQueuer, async and in threads, and by us in threads, in turns; then
    enqueues one by one and pickups, its handlers async."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        progress.emit(f"peers: skipped, not installed: {', '.join(missing)} (the extra 'bench')")
        return []
    count = int(50_000 * scale)
    tried = [(handlers, batch) for handlers in ("async", "threads") for batch in BATCHES]
    ours, raws, *theirs = repeat(
        times,
        lambda: drain(count),
        lambda: raw_drain(count),
        *(partial(_measure, "drain", count, handlers, batch) for handlers, batch in tried),
    )
    rates = dict(zip(tried, theirs, strict=True))
    for (handlers, batch), values in rates.items():
        progress.emit(
            f"peers: PgQueuer, {handlers}, batches of {batch}: {median(values):,.0f} jobs/s"
        )
    tasks, threads = (
        max((rates[handlers, batch] for batch in BATCHES), key=median)
        for handlers in ("async", "threads")
    )
    name, limit = "PgQueuer 1.6", f"plain psycopg with our statements, {raw.BATCH} each"
    return [
        Figure(f"{name}, async handlers, drain of {count:,}", "jobs/s", tasks, raws, limit),
        Figure(f"{name}, handlers in threads, drain of {count:,}", "jobs/s", threads, raws,
               limit),
        Figure(f"ours to {name}, handlers in threads", "jobs/s", ours, threads, "it"),
        Figure(f"ours to {name}, async handlers", "jobs/s", ours, tasks, "it"),
        *_one_by_one(name, times, scale),
    ]  # fmt: skip


def _one_by_one(name: str, times: int, scale: float) -> list[Figure]:
    count, few = max(int(2_000 * scale), 10), max(int(200 * scale), 20)
    enqueued, theirs, waits, their_waits = repeat(
        times,
        lambda: one_by_one(count),
        lambda: _measure("enqueue", count),
        lambda: pickups(few, noop.enqueue)[0],
        lambda: _measure("pickup", few, LINGERS),
    )
    figures = [Figure(f"ours to {name}, enqueue in autocommit", "jobs/s", enqueued, theirs, "it")]
    for title, share in (("p50", 0.5), ("p99", 0.99)):
        ours, its = (
            [percentile(one, share) * 1_000 for one in found] for found in (waits, their_waits)
        )
        figures.append(Figure(f"ours to {name}, pickup, {title}", "ms", ours, its, "it", "less"))
    return figures


def _measure(what: str, *arguments: object) -> Any:
    """What PgQueuer needs, in a process of its own, whose start is not measured."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.pgqueuer_peer", what, json.dumps(arguments)],
        env=environment("tests.benchmarks.settings"),
        stdout=subprocess.PIPE,
    )
    try:
        output, _ = process.communicate(timeout=600)
    finally:
        stop(process)
    if process.returncode:
        raise RuntimeError(f"PgQueuer's {what} ended with {process.returncode}")
    return json.loads(output)
