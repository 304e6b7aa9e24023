"""How soon a job starts: after its enqueue, and after its due time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from django_jobs.models import Resource
from tests.app.jobs import noop

from . import raw
from .database import empty, fetch, pooled, until, until_all_done
from .draining import raw_drain
from .enqueueing import in_transaction
from .measuring import Figure, percentile, repeat
from .workers import running_worker

WAITED = """
SELECT extract(epoch FROM run.started_at - {since})::float8
FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = run.job_id
ORDER BY job.id
"""

LINGERS = 0.06
"""Longer than a worker lingers after work, so that each job finds it idle."""

NUMBERS = itertools.count()

FIRST = 5
"""Pickups that are not counted: connections are opened and statements planned in them."""


def in_request() -> None:
    """The same, and the connection goes back to the pool, as at the end of a request."""
    in_transaction()
    connection.close()


def with_a_key() -> None:
    """A job with a gate that has room."""
    noop.using(concurrency_key=f"key:{next(NUMBERS)}").enqueue()


def with_a_resource() -> None:
    """The same."""
    noop.using(resources=("benchmark",)).enqueue()


def with_a_tenant() -> None:
    """The same."""
    noop.using(tenant=f"tenant:{next(NUMBERS)}").enqueue()


def pickup(times: int, scale: float) -> list[Figure]:
    """From the commit of an enqueue to the start of the handler, by an idle worker. The raw
    partner is a NOTIFY heard on another connection; for a job with a gate also a plain job."""
    count = max(int(200 * scale), 20)
    Resource.objects.update_or_create(name="benchmark", defaults={"max_concurrency": 100})
    kinds: dict[str, Callable[[], object]] = {
        "in autocommit": noop.enqueue,
        "in a transaction": in_transaction,
        "with a free key": with_a_key,
        "with a free resource": with_a_resource,
        "with a tenant": with_a_tenant,
    }

    def turn() -> list[list[float]]:
        waits = pickups(count, *kinds.values())
        with pooled():
            waits += pickups(count, in_request)
        return [*waits, raw.notified(count)]

    (found,) = repeat(times, turn)
    waits = list(zip(*found, strict=True))
    medians, slowest = (
        [[percentile(one, share) * 1_000 for one in of_kind] for of_kind in waits]
        for share in (0.5, 0.99)
    )
    figures = []
    for at, name in enumerate([*kinds, "from a pooled connection"]):
        for share, values, bar in (("p50", medians, "4 ms"), ("p99", slowest, "10 ms")):
            title = f"pickup {name}, {share}"
            figures.append(
                Figure(title, "ms", values[at], values[-1], "a bare NOTIFY", "less", bar)
            )
        if name.startswith("with "):
            title = f"pickup {name}, to a plain one, p50"
            figures.append(Figure(title, "ms", medians[at], medians[0], "it", "less"))
    return figures


def pickups(count: int, *enqueues: Callable[[], object]) -> list[list[float]]:
    """For each of them, which are called in turns: from its return, its commit included (how long
    a commit takes is the disk's affair), on the database's clock."""
    empty()
    returned = []
    with running_worker("--poll-seconds", "5"):
        for enqueue in enqueues * (FIRST + count):
            enqueue()
            returned.append(time.time())
            time.sleep(LINGERS)
        until_all_done()
    before = time.time()
    ((their_now,),) = fetch("SELECT extract(epoch FROM clock_timestamp())::float8")
    ahead = their_now - (before + time.time()) / 2
    started = fetch(
        "SELECT extract(epoch FROM started_at)::float8 FROM django_jobs_run ORDER BY job_id"
    )
    waits = [at - ahead - since for (at,), since in zip(started, returned, strict=True)]
    kinds = len(enqueues)
    return [waits[FIRST * kinds + kind :: kinds] for kind in range(kinds)]


def due(times: int, scale: float) -> list[Figure]:
    """10,000 jobs due at the same instant: the last start after it; and a lone scheduled job."""
    count, alone = int(10_000 * scale), max(int(20 * scale), 5)
    last, raw_last = repeat(times, lambda: _due_at_once(count), lambda: count / raw_drain(count))
    lone, raw_lone = repeat(
        times,
        lambda: percentile(_lone(alone), 0.95) * 1_000,
        lambda: percentile(raw.late(alone), 0.95) * 1_000,
    )
    return [
        Figure(f"{count:,} due at once, last start", "s", last, raw_last,
               "plain psycopg, if all were ready", "less", "2 s"),
        Figure("a lone scheduled job, p95", "ms", lone, raw_lone,
               "a sleep and a SELECT", "less", "50 ms"),
    ]  # fmt: skip


def _due_at_once(count: int) -> float:
    empty()
    with running_worker():
        instant = timezone.now() + timedelta(seconds=3)
        noop.using(run_at=instant).enqueue_many({} for _ in range(count))
        if timezone.now() > instant:
            raise RuntimeError("the enqueue took longer than the jobs were to wait")
        until_all_done()
    waits = [wait for (wait,) in fetch(WAITED.format(since="run.available_at"))]
    if len(waits) != count or min(waits) < 0:
        raise RuntimeError("a job started too early, or not once")
    return max(waits)


def _lone(count: int) -> list[float]:
    empty()
    unfinished = "SELECT 1 FROM django_jobs_job_live WHERE finished_at IS NULL LIMIT 1"
    with running_worker("--poll-seconds", "5"):
        for _ in range(count):
            noop.using(delay=0.3).enqueue()
            until(lambda: not fetch(unfinished))
    return [wait for (wait,) in fetch(WAITED.format(since="run.available_at"))]
