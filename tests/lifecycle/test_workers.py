"""A worker's row: registered, renewed, ended."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import transaction

from django_jobs.lifecycle import progress, reaping
from django_jobs.lifecycle import workers as lifecycle_workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Worker
from tests.factories import enqueue_and_claim, in_threads, make_user, register_worker, run_sql

pytestmark = pytest.mark.django_db


def lease_of(worker: int) -> float:
    """Seconds that are left of it, on the database's clock."""
    ((left,),) = run_sql(
        "SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8"
        " FROM django_jobs_worker WHERE id = %s",
        [worker],
    )
    return float(left)


def drains(workers: list[int], lease: float) -> dict[int, bool]:
    """Whether each that was renewed is asked to drain."""
    renewed = lifecycle_workers.renew(workers, lease)
    return {worker: renewal.drain_requested for worker, renewal in renewed.items()}


def test_a_worker_is_registered_with_a_lease_from_now() -> None:
    worker = Worker.objects.get(pk=register_worker("web-1", lease=30))
    assert (worker.name, worker.host, worker.pid, worker.status) == (
        "web-1",
        "testhost",
        4711,
        "running",
    )
    assert "app.noop" in worker.job_types
    assert worker.payload_versions is not None
    assert "app.noop" not in worker.payload_versions  # it is 1
    assert worker.payload_versions["app.greet"] == 3
    assert worker.started_at == worker.heartbeat_at
    assert not worker.has_ended
    assert 10 < lease_of(worker.pk) <= 30  # less by what the machine stood still


def test_every_start_of_a_worker_makes_a_new_row() -> None:
    assert register_worker("same") != register_worker("same")


def test_a_worker_id_is_random_and_exact_in_javascript() -> None:
    workers = {register_worker() for _ in range(5)}
    assert len(workers) == 5
    for worker in workers:
        assert 10**15 <= worker < 2**53
        assert int(float(worker)) == worker


def test_a_worker_gets_no_id_of_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter([7, 7, 8])
    monkeypatch.setattr("secrets.randbelow", lambda _: next(numbers))
    first, second = register_worker(), register_worker()
    assert second == first + 1
    assert Worker.objects.count() == 2


def test_names_of_any_length_are_registered() -> None:
    boot = lifecycle_workers.WorkerInfo(
        name="n" * 500,
        host="h" * 500,
        pid=1,
        queues=[],
        threads=1,
        job_types={},
        code_version="v" * 500,
        lease=1,
    )
    worker = Worker.objects.get(pk=lifecycle_workers.register(boot))
    assert (len(worker.name), len(worker.host), len(worker.code_version)) == (200, 200, 100)


def test_a_heartbeat_extends_the_lease_of_all_workers_it_speaks_for() -> None:
    one, other, silent = (
        register_worker(lease=5),
        register_worker(lease=5),
        register_worker(lease=5),
    )
    assert drains([one, other], 60) == {one: False, other: False}
    assert 40 < lease_of(one) <= 60
    assert lease_of(silent) < 6


def test_a_drain_request_arrives_with_the_heartbeat() -> None:
    worker = register_worker()
    job_operations.stop_workers([worker])
    assert drains([worker], 30) == {worker: True}


def test_a_renewal_writes_what_the_workers_use_and_run() -> None:
    known, unknown = register_worker(), register_worker()
    load = lifecycle_workers.Load(rss_mb=120, started=[(7, 1.5, None), (8, 0.2, 40)])
    lifecycle_workers.renew([known, unknown], 30, loads={known: load})
    worker = Worker.objects.get(pk=known)
    assert (worker.rss_mb, worker.started_jobs) == (120, [[7, 1.5, None], [8, 0.2, 40]])
    worker = Worker.objects.get(pk=unknown)
    assert (worker.rss_mb, worker.started_jobs, worker.listens) == (None, None, None)


def test_a_renewal_writes_what_the_workers_have_ended_and_whether_they_listen() -> None:
    worker = register_worker()
    load = lifecycle_workers.Load(9, runs=7, failed=2, listens=False)
    for loads in ({worker: load}, {}):
        lifecycle_workers.renew([worker], 30, loads=loads)
        row = Worker.objects.get()
        assert (row.ended_runs, row.failed_runs) == (7, 2)
    assert row.listens is None


def test_a_worker_drains_since_it_was_marked() -> None:
    worker = register_worker()
    lifecycle_workers.mark_draining([worker])
    (at,) = Worker.objects.values_list("draining_at", flat=True)
    assert at > Worker.objects.get().started_at
    lifecycle_workers.mark_draining([worker])
    assert Worker.objects.get().draining_at == at


def test_a_renewal_writes_how_far_the_clock_of_the_host_is_off_once_it_is_known() -> None:
    worker = register_worker()
    written = []
    for known in (None, -90.5, None, 0.0):
        lifecycle_workers.renew([worker], 30, clock_skew=known)
        written.append(Worker.objects.get().clock_skew)
    assert written == [None, -90.5, -90.5, 0.0]


def test_a_renewal_writes_the_failed_claims_that_it_knows() -> None:
    known, unknown = register_worker(), register_worker()
    lifecycle_workers.renew([known, unknown], 30, claim_failures={known: 3, unknown: 4})
    lifecycle_workers.renew([known, unknown], 30, claim_failures={known: 5})
    written = dict(Worker.objects.values_list("pk", "claim_failures"))
    assert written == {known: 5, unknown: 4}


def test_an_expired_worker_that_nobody_declared_lost_may_still_renew() -> None:
    worker = register_worker(lease=-5)
    assert drains([worker], 30) == {worker: False}
    assert reaping.reap() == []
    assert Worker.objects.get().status == "running"


def test_a_worker_that_was_declared_lost_is_not_renewed() -> None:
    worker = register_worker(lease=-1)
    reaping.reap()
    assert lifecycle_workers.renew([worker, 10**12], 30) == {}
    assert Worker.objects.get().status == "lost"


def beat(worker: int, beats: dict[int, datetime]) -> dict[int, datetime]:
    """The heartbeat that is known after a renewal; empty if the lease is lost."""
    renewed = lifecycle_workers.renew([worker], 30, None, beats)
    beats = {worker: renewal.heartbeat_at for worker, renewal in renewed.items()}
    return {worker: at for worker, at in beats.items() if at is not None}


def shift_heartbeat(interval: str) -> None:
    run_sql("UPDATE django_jobs_worker SET heartbeat_at = heartbeat_at + %s::interval", [interval])


def test_a_worker_row_from_a_backup_is_not_renewed() -> None:
    """As after a backup was restored: what the worker did since is not in the tables."""
    worker = register_worker()
    known = beat(worker, {})
    shift_heartbeat("-1 millisecond")
    assert beat(worker, known) == {}
    assert beat(worker, {}) != {}  # a heartbeat process that has just started knows no better


def test_a_renewal_whose_answer_was_lost_costs_no_lease() -> None:
    worker = register_worker()
    known = beat(worker, {})
    beat(worker, known)
    assert beat(worker, known) != {}


def test_a_clock_of_the_database_that_goes_back_costs_no_lease() -> None:
    worker = register_worker()
    shift_heartbeat("1 hour")
    ahead = {worker: Worker.objects.get().heartbeat_at}
    behind = beat(worker, ahead)
    assert behind[worker] < ahead[worker]
    assert beat(worker, behind) != {}


@pytest.mark.django_db(transaction=True)
def test_a_locked_worker_row_delays_no_other_renewal() -> None:
    locked, other = register_worker(lease=5), register_worker(lease=5)
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_worker WHERE id = %s FOR UPDATE", [locked])
        (renewed,) = in_threads(1, lambda _: lifecycle_workers.renew([locked, other], 60))
        in_threads(1, lambda _: lifecycle_workers.mark_draining([locked, other]))
        assert in_threads(1, lambda _: lifecycle_workers.end(locked)) == [False]
    assert renewed[locked].heartbeat_at is None  # not renewed, and not lost
    assert renewed[other].heartbeat_at is not None
    assert lease_of(locked) < 6
    assert 40 < lease_of(other) <= 60
    assert dict(Worker.objects.values_list("pk", "status")) == {
        locked: "running",
        other: "draining",
    }


def test_cancels_are_found_only_for_running_jobs_of_these_workers() -> None:
    one, other = enqueue_and_claim(), enqueue_and_claim()
    job_operations.cancel([one.id, other.id])
    assert lifecycle_workers.cancels_asked([one.worker]) == [(one.worker, one.id, False)]
    assert lifecycle_workers.cancels_asked([]) == []


def test_a_renewal_says_which_workers_are_asked_something() -> None:
    cancelled, inspected, left = (enqueue_and_claim() for _ in range(3))
    job_operations.cancel([cancelled.id])
    progress.ask([inspected.id], "admin")
    renewed = lifecycle_workers.renew([held.worker for held in (cancelled, inspected, left)], 30)
    asked = {worker: renewal[2:] for worker, renewal in renewed.items()}
    assert asked == {
        cancelled.worker: (True, False, True),
        inspected.worker: (False, True, True),
        left.worker: (False, False, True),
    }
    idle = register_worker()
    assert not lifecycle_workers.renew([idle], 30)[idle].holds_jobs


def test_a_draining_worker_keeps_its_jobs_and_its_lease() -> None:
    held = enqueue_and_claim()
    lifecycle_workers.mark_draining([held.worker])
    assert Worker.objects.get().status == "draining"
    assert drains([held.worker], 30) == {held.worker: False}
    assert reaping.reap() == []


def test_a_worker_row_is_closed_once() -> None:
    worker = register_worker()
    assert lifecycle_workers.end(worker, reason="SIGTERM" + "!" * 400)
    assert not lifecycle_workers.end(worker, status="lost", reason="too late")
    row = Worker.objects.get()
    assert (row.status, row.stop_reason[:7]) == ("stopped", "SIGTERM")
    assert row.stopped_at is not None
    assert row.has_ended


def test_a_worker_that_drains_keeps_who_asked_unless_its_end_has_another_reason() -> None:
    drained, killed = register_worker(), register_worker()
    job_operations.stop_workers([drained, killed], actor=make_user("stop_worker", name="ada"))
    assert lifecycle_workers.end(drained)
    assert lifecycle_workers.end(killed, reason="SIGKILL")
    assert Worker.objects.get(pk=drained).stop_reason == "drained by ada"
    assert Worker.objects.get(pk=killed).stop_reason == "SIGKILL"
