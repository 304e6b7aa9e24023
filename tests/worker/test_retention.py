"""Real workers delete the successes of a queue that keeps none, and drop and make partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_jobs.lifecycle.history import TABLES, partitions
from django_jobs.maintenance.history import make_due_partitions
from django_jobs.models import Job, Queue, Run
from tests.app import jobs
from tests.factories import run_sql
from tests.maintenance.test_history import finished, make_days, old

from .processes import BEATS_OFTEN, Start, until

pytestmark = pytest.mark.processes


def test_successes_of_a_queue_that_keeps_none_are_gone_and_those_of_others_stay(
    start_worker: Start,
) -> None:
    Queue.objects.filter(name="bulk").update(retention={"succeeded": 0})
    jobs.noop.using(queue="bulk").enqueue_many({} for _ in range(20))
    failing = jobs.fail.using(queue="bulk", max_attempts=1).enqueue()
    kept = jobs.noop.enqueue()
    assert start_worker("--burst").wait() == 0
    assert dict(Job.objects.values_list("pk", "status")) == {
        failing.pk: "dead",
        kept.pk: "succeeded",
    }
    assert set(Run.objects.values_list("job_id", flat=True)) == {failing.pk, kept.pk}


@pytest.fixture
def _partitions(transactional_db: None) -> Iterator[None]:
    """Leaves those of the next days, and no earlier ones."""
    yield
    for table in TABLES:
        for one in partitions(table)[: old()[TABLES.index(table)]]:
            run_sql(f"DROP TABLE {one.name}")
    make_due_partitions()


@pytest.mark.usefixtures("_partitions")
def test_a_worker_drops_an_expired_day_and_makes_the_next(
    start_worker: Start,
) -> None:
    make_days(9, 2)
    finished(9)
    kept = finished(2)
    ends = [partitions(table)[-1] for table in TABLES]
    for last in ends:
        run_sql(f"DROP TABLE {last.name}")
    worker = start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    until(lambda: [partitions(table)[-1] for table in TABLES] == ends and old() == (1, 1))
    assert Job.objects.get().pk == Run.objects.get().job_id == kept
    until(lambda: worker.text().count("event=partition_dropped") == 2)
