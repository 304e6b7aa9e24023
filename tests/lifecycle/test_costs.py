"""The bars of ``docs/performance.md`` that no machine decides: what a job costs in statements, in
bytes of WAL and in pages."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import notifying
from django_jobs.lifecycle.settling import Ending, settle
from tests.app.jobs import noop
from tests.factories import claim_ready, register_worker, run_sql

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
MANY = 300
"""Jobs of a batch: as many as a worker claims at most."""

NUMBERS = itertools.count()

WRITTEN = "SELECT wal_bytes, wal_fpi FROM pg_stat_get_backend_wal(pg_backend_pid())"


def enqueue_many() -> list[int]:
    return noop.enqueue_many([{}] * MANY)


def enqueue_with_keys() -> list[int]:
    keys = [f"key-{next(NUMBERS)}" for _ in range(MANY)]
    return noop.enqueue_many([{}] * MANY, idempotency_keys=keys)


def prepare_claim() -> Callable[[], object]:
    enqueue_many()
    worker = register_worker()
    return lambda: claim_ready(worker, limit=MANY)


def prepare_settle() -> Callable[[], object]:
    enqueue_many()
    held = claim_ready(register_worker(), limit=MANY)
    return lambda: settle([Ending(job, Succeeded(), started=time.monotonic()) for job in held])


@dataclass(frozen=True, slots=True)
class Cost:
    """The most that a job may cost: ``statements`` of all its batch, bytes of ``wal`` of one job
    without images of whole pages, which depend on checkpoints, and ``pages`` that are looked at for
    one job beside 10,000 others (test_pages.py)."""

    prepare: Callable[[], Callable[[], object]]
    jobs: int
    statements: int
    wal: int
    pages: int | None = None


COSTS = {
    "`enqueue`": Cost(lambda: noop.enqueue, 1, 2, 365),
    "`enqueue_many` of 300": Cost(lambda: enqueue_many, MANY, 3, 290),
    "`enqueue_many` of 300, each with a key": Cost(lambda: enqueue_with_keys, MANY, 6, 395),
    "claim of 300": Cost(prepare_claim, MANY, 1, 480, pages=9),
    "settle of 300": Cost(prepare_settle, MANY, 1, 630, pages=13),
}


def written() -> tuple[int, int]:
    """The bytes of WAL of this session so far, and its images of whole pages."""
    run_sql("SELECT pg_stat_force_next_flush()")
    ((size, images),) = run_sql(WRITTEN)
    return int(size), images


@pytest.mark.parametrize("name", COSTS)
def test_the_statements_of_a_batch_are_within_their_bar(name: str) -> None:
    """With the NOTIFY of an enqueue, which is sent once in 20 ms."""
    cost = COSTS[name]
    noop.enqueue()  # reads the queue
    work = cost.prepare()
    notifying._last_sent.clear()
    with CaptureQueriesContext(connection) as queries:
        work()
    texts = [query["sql"] for query in queries]
    assert len(texts) <= cost.statements, texts


@pytest.mark.parametrize("name", COSTS)
def test_the_wal_of_a_job_is_within_its_bar(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A NOTIFY has 32 bytes, and the slower the machine, the more of the enqueues send one.
    monkeypatch.setattr(notifying, "THROTTLE_SECONDS", 3_600.0)
    if connection.cursor().connection.info.server_version < 180_000:
        pytest.skip("PostgreSQL before 18 does not count the WAL of a session")
    cost = COSTS[name]
    images = 1
    while images:  # until no checkpoint was just before it
        work = cost.prepare()
        size, earlier = written()
        for _ in range(MANY // cost.jobs):
            work()
        after, images = written()
        size, images = after - size, images - earlier
    assert 0 < size / MANY <= cost.wal


def test_the_page_has_these_bars() -> None:
    page = PAGE.read_text()
    for name, cost in COSTS.items():
        assert f"| {name} | {cost.statements} | {cost.wal} | {cost.pages or '—'} |" in page
