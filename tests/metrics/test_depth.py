"""The number of live jobs, where there are too many to count them all."""

from __future__ import annotations

import pytest

from django_jobs.metrics import gauges
from django_jobs.metrics.gauges import read_gauges
from django_jobs.models import Queue
from django_jobs.models.job import QUARANTINED
from tests.app.gate_jobs import charge_account
from tests.app.jobs import noop
from tests.factories import claim_ready, copies_of, due_schedule, register_worker, run_sql
from tests.workflows import start_graph

pytestmark = pytest.mark.django_db

Rows = dict[tuple[str, str], tuple[int, int | None]]


@pytest.fixture
def _few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape finds the table large, and of its sample no page."""
    few = {"whole": 0, "pages": 1e-9, "most": 200, "head": 200}
    monkeypatch.setattr(gauges, "BOUNDS", {**gauges.BOUNDS, **few})


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
def test_what_may_lie_behind_the_last_that_was_read_is_an_estimate() -> None:
    for _ in range(200):
        start_graph({"a": "", "b": "a"})
    run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE step = 'b'")
    assert jobs()["default", "waiting"] == (0, 1)


def test_an_estimate_stands_still_while_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken from other pages each time."""
    copies_of(noop.enqueue(), 3_000)
    copies_of(charge_account.enqueue(1), 300, "blocked")
    few = {"whole": 0, "pages": 20, "most": 100, "head": 100}
    monkeypatch.setattr(gauges, "BOUNDS", {**gauges.BOUNDS, **few})
    first = jobs()
    assert first["default", "ready"][1] == first["default", "blocked"][1] == 1
    assert all(jobs() == first for _ in range(5))


@pytest.mark.usefixtures("_few_pages")
def test_few_jobs_of_each_state_are_counted_among_many() -> None:
    """A step, a job that waits for a signal, one for the last of its schedule; at a gate, and of a
    type in quarantine."""
    job, charge = noop.enqueue(), charge_account.enqueue(1)
    start_graph({"a": "", "b": "a", "c": "b"})
    copies_of(charge, 3, "blocked")
    signal, last, quarantined = copies_of(job, 3)
    for id_, values in {
        signal: "status = 'waiting', awaits = 'go'",
        last: f"status = 'waiting', schedule_id = {due_schedule().pk}",
        quarantined: f"status = 'blocked', reason = '{QUARANTINED}'",
    }.items():
        run_sql(f"UPDATE django_jobs_job SET {values} WHERE id = {id_}")
    seen = jobs()
    assert seen["default", "waiting"] == (4, None)
    assert seen["default", "blocked"] == (5, None)
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
