"""The number of live jobs, where there are too many to count them all."""

from __future__ import annotations

import pytest

from django_jobs.metrics import gauges
from django_jobs.metrics.gauges import read_gauges
from django_jobs.models import Queue
from tests.app.jobs import noop
from tests.factories import claim_ready, copies_of, register_worker, run_sql

pytestmark = pytest.mark.django_db

Rows = dict[tuple[str, str], tuple[int, int | None]]


@pytest.fixture
def _few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape finds the table large, and of its sample no page."""
    monkeypatch.setattr(gauges, "BOUNDS", {**gauges.BOUNDS, "pages": 0, "most": 200, "head": 200})


def jobs() -> Rows:
    """How many jobs each queue has in each state, and whether that is an estimate."""
    run_sql("DELETE FROM django_jobs_storedmetrics")
    rows = read_gauges()["jobs"]
    return {(row["queue"], row["state"]): (row["jobs"], row["estimated"]) for row in rows}


@pytest.mark.usefixtures("_few_pages")
def test_there_are_at_least_as_many_jobs_as_were_counted() -> None:
    each = 200 // Queue.objects.count()
    first, other = noop.enqueue(), noop.using(queue="bulk").enqueue()
    copies_of(first, each + 10)
    copies_of(other, 3)
    claim_ready(register_worker(), limit=7)
    seen = jobs()
    assert seen["default", "ready"] == (each, 1)
    assert seen["bulk", "ready"] == (4, None)
    assert seen["default", "running"] == (7, None)


@pytest.mark.usefixtures("_few_pages")
def test_a_zero_that_was_not_counted_is_an_estimate() -> None:
    noop.enqueue()
    seen = jobs()
    assert seen["default", "ready"] == (1, None)
    for state in ("blocked", "waiting"):
        assert seen["default", state] == (0, 1)
    for state in ("scheduled", "running", "dead"):
        assert seen["default", state] == (0, None)


def test_a_queue_is_there_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "BOUNDS", {**gauges.BOUNDS, "series": 3})
    Queue.objects.bulk_create(Queue(name=f"q{number}") for number in range(150))
    busy = noop.using(queue="q149").enqueue()
    copies_of(busy, 4)
    noop.using(queue="bulk").enqueue_many([{}] * 2)
    seen = jobs()
    names = {queue for queue, _ in seen}
    assert {"q149", "bulk"} < names
    assert (len(names), len(seen)) == (3, 18)
    assert seen["q149", "ready"] == (5, None)
    assert {row["queue"] for row in read_gauges()["queues"]} == names
