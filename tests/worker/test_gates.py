"""Limits of jobs that wait at gates, with real processes."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import transaction

from django_jobs import enqueue_many, registry
from django_jobs.models import Job, Resource, Run, Tenant, Worker
from tests.app.gate_jobs import charge_account, refund_payment
from tests.chaos.gates import most_excess
from tests.factories import run_sql

from .processes import LONG_POLL, REAPS_OFTEN, Start, end_lease, in_case, until, until_status

pytestmark = pytest.mark.processes


def enqueue_pairs(path: Path, count: int, seconds: float) -> None:
    enqueue_many("app.run_in_pairs", [{"path": str(path), "seconds": seconds}] * count)


def begun_and_ended(path: Path) -> list[tuple[str, str, int]]:
    """What happened, which job, and the process, in order."""
    if not path.exists():
        return []
    words = (line.split() for line in path.read_text().splitlines())
    return [(what, job, int(pid)) for what, job, pid, _ in words]


def all_succeeded(count: int) -> bool:
    return Job.objects.filter(status="succeeded").count() == count


def test_two_workers_never_run_more_than_the_limit_of_a_key(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "spans"
    enqueue_pairs(path, 40, 0.02)
    for _ in range(2):
        start_worker("--threads", "4", "--poll-seconds", "0.2")
    until(lambda: all_succeeded(40))
    running, most = set[str](), 0
    for what, job, _ in begun_and_ended(path):
        running.add(job) if what == "begin" else running.remove(job)
        most = max(most, len(running))
    assert most == 2
    assert not running


def test_a_killed_worker_leaks_no_slot(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "spans"
    enqueue_pairs(path, 2, 600.0)
    killed = start_worker("--threads", "4")
    until(lambda: len(begun_and_ended(path)) == 2)
    Job.objects.update(payload={"path": str(path), "seconds": 0.0})
    enqueue_pairs(path, 6, 0.0)
    killed.signal_all(signal.SIGKILL)
    until(lambda: not killed.session())
    end_lease(Worker.objects.get())
    start_worker("--threads", "4", TEST_DJANGO_JOBS=REAPS_OFTEN)
    until(lambda: all_succeeded(8))
    assert Run.objects.filter(outcome="lost").count() == 2


def test_a_rate_serves_the_queue_that_has_a_worker(start_worker: Start) -> None:
    Resource.objects.create(name="stripe", rate=50.0)
    elsewhere = [refund_payment.using(queue="bulk").enqueue(number) for number in range(8)]
    here = [refund_payment.enqueue(number) for number in range(3)]
    start_worker("--queues", "default")
    for job in here:
        until_status(job, "succeeded")
    assert not Job.objects.filter(pk__in=[job.pk for job in elsewhere], status="ready").exists()


def test_a_better_job_of_another_line_does_not_wait_for_a_backlog(start_worker: Start) -> None:
    Resource.objects.create(name="stripe", max_concurrency=2)
    refund_payment.enqueue_many([{"payment_id": number} for number in range(20_000)])
    start_worker()
    until(lambda: Job.objects.filter(status="succeeded").exists())
    urgent = refund_payment.using(priority=100, concurrency_key="k").enqueue(9)
    until_status(urgent, "succeeded")
    assert Job.objects.filter(status="blocked").exists()


def test_what_is_not_settled_by_its_worker_passes_its_slot_on(start_worker: Start) -> None:
    """Without a notification each would wait for a poll."""
    Tenant.objects.create(name="acme", max_concurrency=1)
    start_worker(*LONG_POLL)
    until(lambda: Worker.objects.filter(status="running").exists())
    for number, name in enumerate(("app.write_once", "app.alone"), 1):
        with in_case(name):
            for _ in range(4):
                registry.get(name).using(tenant="acme").enqueue()
            until(lambda number=number: all_succeeded(4 * number))


NOTE = """
CREATE TABLE noted_change (job_id bigint, at timestamptz DEFAULT clock_timestamp(),
    session integer DEFAULT pg_backend_pid());
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO noted_change (job_id) VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER note_change AFTER UPDATE ON django_jobs_job_live FOR EACH ROW
    WHEN (OLD.status = '{before}' AND NEW.status = '{after}' AND NEW.gates IS NOT NULL)
    EXECUTE FUNCTION note_change()
"""


@contextmanager
def noted(before: str, after: str) -> Iterator[Callable[[], list[float]]]:
    """When jobs with gates changed so, by the database's clock: each the last time, because a
    worker may give back what it claimed and did not start."""
    run_sql(NOTE.format(before=before, after=after))
    try:
        yield lambda: [
            at
            for (at,) in run_sql(
                "SELECT extract(epoch FROM max(at))::float8 AS last FROM noted_change"
                " GROUP BY job_id ORDER BY last"
            )
        ]
    finally:
        run_sql("DROP TRIGGER note_change ON django_jobs_job_live")
        run_sql("DROP FUNCTION note_change()")
        run_sql("DROP TABLE noted_change")


def test_starts_never_exceed_the_burst_and_the_rate_and_a_burst_waits_for_tokens(
    start_worker: Start,
) -> None:
    Resource.objects.create(name="stripe", rate=50.0, burst=5)
    enqueue_many("app.refund_payment", [{"payment_id": number} for number in range(55)])
    with noted("blocked", "ready") as admissions:  # a claim follows later on a busy machine
        workers = [start_worker("--threads", "4", "--burst") for _ in range(2)]
        assert [worker.wait() for worker in workers] == [0, 0]
        starts = admissions()
    assert all_succeeded(55)
    assert len(starts) == 55
    assert most_excess(starts, 50, 5) <= 1
    assert starts[-1] - starts[0] > 0.9


def test_jobs_of_a_rate_that_waited_behind_others_do_not_start_all_at_once(
    start_worker: Start,
) -> None:
    """They were admitted, with a token each, and better jobs took the threads for a while."""
    Resource.objects.create(name="stripe", rate=25.0, burst=5)
    enqueue_many("app.refund_payment", [{"payment_id": number} for number in range(40)])
    enqueue_many("app.nap", [{"seconds": 0.02}] * 300, priority=50)
    with noted("ready", "running") as claims:
        workers = [start_worker("--threads", "2", "--burst") for _ in range(2)]
        assert [worker.wait() for worker in workers] == [0, 0]
        starts = claims()
    assert all_succeeded(340)
    assert len(starts) == 40
    assert most_excess(starts, 25, 5) <= 1


def test_a_job_with_a_free_gate_is_picked_up_at_once(start_worker: Start) -> None:
    """By the hint: the next poll is far away."""
    Resource.objects.create(name="stripe", max_concurrency=2)
    start_worker(*LONG_POLL)
    until(lambda: Worker.objects.filter(status="running").exists())
    for number in range(3):
        for gated in (charge_account, refund_payment):
            until_status(gated.enqueue(number), "succeeded")


ADMITTED = "SELECT session, tenant FROM noted_change JOIN django_jobs_job ON id = job_id"


def test_weights_hold_over_the_processes_of_a_fleet(start_worker: Start) -> None:
    """In what they admit. What is ready, half a second of work, starts in the order of its rank."""
    Tenant.objects.create(name="gold", weight=3)
    with noted("blocked", "ready"):
        workers = [start_worker("--threads", "2") for _ in range(2)]
        until(lambda: Worker.objects.filter(status="running").count() == 2)
        with transaction.atomic():
            for name in ("plain", "gold"):
                registry.get("app.nap").using(tenant=name).enqueue_many([{"seconds": 0.01}] * 1_500)
        admitted = until(lambda: rows if len(rows := run_sql(ADMITTED)) >= 800 else None)
        for worker in workers:
            worker.signal(signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0, 0]
    assert len({session for session, _ in admitted}) == 2
    counts = Counter(tenant for _, tenant in admitted)
    assert counts["gold"] < 1_500, "it ran out of jobs"
    assert counts["gold"] / counts["plain"] == pytest.approx(3, rel=0.05)
