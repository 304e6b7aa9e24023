"""Whether the rate stays, whatever else is in the table or holds on to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg

from django_jobs.domain.gates import Gates
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.claiming import START, claim
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.lifecycle.workers import register
from django_jobs.worker.process.claims import RESTART_SECONDS

from . import raw
from .database import NOOP, empty, execute, fetch, fill, until
from .gating import fill_gated
from .measuring import Figure, progress, repeat, turns
from .workers import run_worker, running_worker

DAY = 86_400.0

FILL_KEY = """
UPDATE django_jobs_job_live SET status = 'ready', job_type = 'benchmark.elsewhere'
WHERE id = (SELECT min(id) FROM django_jobs_job_live)
"""


def beside_many_rows(times: int, scale: float) -> list[Figure]:
    """The rate of a queue beside rows in other states, to the rate on an empty table."""
    count = int(30_000 * scale)

    def beside(others: Callable[[], None]) -> float:
        empty()
        others()
        fill(count)
        return _drain_first(count)

    def rows(number: int, status: str) -> Callable[[], None]:
        return lambda: fill(int(number * scale), status, ahead=DAY)

    cases = {
        "1,000,000 in the backlog": rows(1_000_000, "ready"),
        "1,000,000 scheduled": rows(1_000_000, "scheduled"),
        "3,000,000 finished": rows(3_000_000, "succeeded"),
        "200,000 blocked behind a full key": lambda: _fill_full_key(int(200_000 * scale)),
    }
    alone, *found = repeat(
        times,
        partial(beside, lambda: None),
        *(partial(beside, others) for others in cases.values()),
    )
    empty()
    more = "" if scale == 1 else f" times {scale:g}"
    return [
        Figure(f"drain of {count:,} beside {name}{more}", "jobs/s", values, alone, "an empty table")
        for name, values in zip(cases, found, strict=True)
    ]


def _fill_full_key(count: int) -> None:
    """Jobs of a key whose only slot has a ready job that no worker here can run."""
    fill_gated(count + 1, Gates(queue="default", key="full", limit=1))
    execute(FILL_KEY)


def _drain_first(count: int) -> float:
    """Drain the first ``count`` jobs of a maybe longer queue, on the database's clock."""
    done = "SELECT count(*) >= %s FROM django_jobs_run"
    with running_worker():
        until(lambda: fetch(done, [count])[0][0])
    ((runs, seconds),) = fetch(
        "SELECT count(*), extract(epoch FROM max(finished_at) - min(claimed_at))::float8 FROM "
        "(SELECT finished_at, claimed_at FROM django_jobs_run ORDER BY id LIMIT %s) AS first",
        [count],
    )
    return float(runs / seconds)


def under_a_held_snapshot(times: int, scale: float) -> list[Figure]:
    """A drain while another session holds an old snapshot: its last tenth to its first. Once by a
    worker, and once by its claim and settle in one thread, with claims of a fixed size."""
    count = int(100_000 * scale)
    kinds = {
        "a worker": lambda: run_worker(),
        "claims of 100": lambda: _drain_in_claims_of(100),
        "claims of 10": lambda: _drain_in_claims_of(10),
    }
    figures = []
    for name, drain in kinds.items():
        first: list[float] = []
        last: list[float] = []
        for _ in turns(times):
            empty()
            fill(count)
            with _held_snapshot():
                drain()
            rates = _tenths(count)
            first.append(rates[0])
            last.append(rates[-1])
            tenths = ", ".join(f"{rate:,.0f}" for rate in rates)
            progress.emit(f"snapshot: {name}, tenth by tenth: {tenths} jobs/s")
        title = f"drain of {count:,} under a held snapshot, {name}, last tenth"
        figures.append(Figure(title, "jobs/s", last, first, "its first tenth"))
    return figures


def _drain_in_claims_of(size: int) -> None:
    """Claim and settle as a worker does, from the last place on, at the head again each second."""
    worker = register(raw.boot())
    place, restarted = START, time.monotonic()
    while True:
        now = time.monotonic()
        if now - restarted > RESTART_SECONDS:
            place, restarted = START, now
        jobs = claim("default", worker=worker, job_types={NOOP: 1}, limit=size, after=place)
        if not jobs and place == START:
            return
        place = jobs[-1].position if jobs else START
        settle([Ending(job, Succeeded(), started=now) for job in jobs])


def _tenths(count: int) -> list[float]:
    ends = [
        float(end)
        for (end,) in fetch(
            "SELECT extract(epoch FROM finished_at)::float8 FROM django_jobs_run ORDER BY 1"
        )
    ]
    if len(ends) != count:
        raise RuntimeError(f"{count} jobs left {len(ends)} runs in the ledger")
    # The very first jobs are claimed a few at a time, until the pace is known.
    size = count // 10
    marks = [ends[size // 5], *(ends[min(size * n, count) - 1] for n in range(1, 11))]
    sizes = [size - size // 5] + [size] * 9
    return [sizes[n] / max(marks[n + 1] - marks[n], 1e-9) for n in range(10)]


@contextmanager
def _held_snapshot() -> Iterator[None]:
    """A REPEATABLE READ transaction of another session that has begun to read and does not end."""
    let_go, held = threading.Event(), threading.Event()

    def hold() -> None:
        with raw.connect() as connection:
            connection.autocommit = False
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM django_jobs_worker")
            held.set()
            let_go.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        if not held.wait(10):
            raise RuntimeError("no snapshot is held")
        yield
    finally:
        let_go.set()
        thread.join(10)
