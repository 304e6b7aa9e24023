"""PgQueuer on the same machine in the same run, where its extra is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import partial
from statistics import median

from . import raw
from .draining import drain, raw_drain
from .measuring import Figure, progress, repeat
from .workers import environment, stop

NEEDED = ("pgqueuer", "asyncpg", "uvloop")
BATCHES = (100, 200)
"""Which is faster changes with the machine; the better median counts."""


def pgqueuer(times: int, scale: float) -> list[Figure]:
    """A drain of no-op jobs by PgQueuer, async and in threads, and by us in threads, in turns."""
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
        *(partial(_pgqueuer_drain, count, handlers, batch) for handlers, batch in tried),
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
    ]  # fmt: skip


def _pgqueuer_drain(count: int, handlers: str, batch: int) -> float:
    """Jobs a second, by a process of its own, whose start is not measured."""
    module = "tests.benchmarks.pgqueuer_drain"
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(count), handlers, str(batch)],
        env=environment("tests.benchmarks.settings"),
        stdout=subprocess.PIPE,
    )
    try:
        output, _ = process.communicate(timeout=600)
    finally:
        stop(process)
    if process.returncode:
        raise RuntimeError(f"PgQueuer's drain ended with {process.returncode}")
    return float(json.loads(output)["rate"])
