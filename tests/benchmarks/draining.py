"""How fast ready jobs are run."""

from __future__ import annotations

import json
import os
from unittest import mock

from . import raw
from .database import drained_per_second, empty, fill
from .measuring import Figure, repeat
from .workers import run_worker


def drain(count: int, *arguments: str) -> float:
    """No-op jobs a second, by a worker with these arguments."""
    empty()
    fill(count)
    run_worker(*arguments)
    return drained_per_second(count)


def raw_drain(count: int) -> float:
    """The same by plain psycopg."""
    empty()
    fill(count)
    return raw.drain(count)


def one_process(times: int, scale: float) -> list[Figure]:
    """No-op jobs, one worker process, handlers in threads."""
    count = int(50_000 * scale)
    values, raws = repeat(times, lambda: drain(count), lambda: raw_drain(count))
    return [
        Figure(
            f"drain of {count:,} no-op jobs, one process",
            "jobs/s",
            values,
            raws,
            f"plain psycopg, {raw.BATCH} a statement",
            bar="12,000 jobs/s",
        )
    ]


def two_processes(times: int, scale: float) -> list[Figure]:
    """The same with two worker processes, beside two of plain psycopg and beside one of ours."""
    count = int(50_000 * scale)

    def raw_two() -> float:
        empty()
        fill(count)
        return raw.drain_with(2, count)

    values, raws, one = repeat(
        times,
        lambda: drain(count, "--processes", "2"),
        raw_two,
        lambda: drain(count),
    )
    name = f"drain of {count:,} no-op jobs, two processes"
    return [
        Figure(name, "jobs/s", values, raws, "two of plain psycopg"),
        Figure(f"{name}, to one", "jobs/s", values, one, "one process"),
    ]


OBSERVED = json.dumps({"RUN_COST": True, "COUNT_QUERIES": True, "RUN_LOGS": "INFO"})


def observed(times: int, scale: float) -> list[Figure]:
    """No-op jobs whose CPU time, queries and log lines are kept, and the same without."""
    count = int(50_000 * scale)

    def measured() -> float:
        with mock.patch.dict(os.environ, BENCHMARK_DJANGO_JOBS=OBSERVED):
            return drain(count)

    values, raws = repeat(times, measured, lambda: drain(count))
    name = f"drain of {count:,} with RUN_COST, COUNT_QUERIES and RUN_LOGS"
    return [Figure(name, "jobs/s", values, raws, "without them")]
