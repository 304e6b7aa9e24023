"""Clocks that are wrong, numbers that grow large (D22, D25)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from django_jobs.doctor.server import examine_clock
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import reaping, workers
from django_jobs.models import Job, Run, Worker
from tests.app import jobs
from tests.clusters import FAST, Cluster
from tests.doctor.finding import findings
from tests.factories import enqueue_and_claim, register_worker, run_sql, settle_one
from tests.worker.firing import database_time, each_second, until_fired
from tests.worker.processes import let_go, lines, until, until_marked, until_status

from .stage import Stage

TABLES = "django_jobs_job", "django_jobs_run", "django_jobs_worker"


@pytest.fixture
def stage(tmp_path: Path, django_db_blocker: Any) -> Iterator[Stage]:
    before = set(Path("/dev/shm").glob("*faketime_*"))
    with Cluster() as own, Stage(own, tmp_path, django_db_blocker) as stage:
        yield stage
    for left in set(Path("/dev/shm").glob("*faketime_*")) - before:
        left.unlink(missing_ok=True)


def faketime() -> Path | None:
    """What the command of that name has its child load."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def set_clock(stage: Stage, off: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart the server with its clock so far off, and no other process's. Without ``off``, a file
    says how far."""
    stage.cluster.stop(FAST)
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(faketime()))
        if off is not None:
            environment.setenv("FAKETIME", off)
        environment.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        stage.come_back()


@pytest.mark.processes
@pytest.mark.skipif(faketime() is None, reason="there is no faketime (Debian: apt-get install)")
def test_a_worker_with_a_wrong_clock_does_nothing_early_or_late(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's clock is moved; libfaketime breaks what Python sleeps with."""
    lease = 4
    for off, hours in (("+2h", 2), ("-2h", -2)):
        set_clock(stage, off, monkeypatch)
        difference = database_time() - datetime.now(UTC)
        assert abs(difference - timedelta(hours=hours)) < timedelta(minutes=5)
        worker = stage.start_worker("--poll-seconds", "0.2", "--lease-seconds", str(lease))
        schedule = each_second(f"off by {off}")
        early, soon = (jobs.noop.using(delay=delay).enqueue() for delay in (3600, 1))
        run = Run.objects.get(job=until_status(soon, "succeeded"))
        assert run.started_at is not None
        assert soon.available_at <= run.claimed_at <= run.finished_at <= database_time()
        until_fired(schedule, times=2)
        boot = Worker.objects.get(status="running")
        beyond = boot.heartbeat_at + timedelta(seconds=lease)
        until(Worker.objects.filter(pk=boot.pk, heartbeat_at__gt=beyond).exists, what="it beats")
        assert Job.objects.get(pk=early.pk).status == "scheduled"
        assert "event=fenced" not in worker.text()
        assert worker.drain() == 0
        schedule.delete()


@pytest.mark.processes
@pytest.mark.skipif(faketime() is None, reason="there is no faketime (Debian: apt-get install)")
def test_a_host_whose_clock_is_wrong_is_named_by_the_doctor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(stage, "+2h", monkeypatch)
    stage.start_worker("--lease-seconds", "4")
    until(Worker.objects.filter(clock_skew__isnull=False).exists, what="it compares the clocks")
    skew = Worker.objects.get().clock_skew
    assert skew is not None
    assert -7_800 < skew < -6_600
    named = [one for one in findings(examine_clock, "D203") if "host" in one.facts]
    assert [one.facts["skew_seconds"] for one in named] == [skew]


@pytest.mark.processes
@pytest.mark.skipif(faketime() is None, reason="there is no faketime (Debian: apt-get install)")
def test_a_clock_of_the_database_that_jumps_forward_takes_no_worker_as_lost(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers go on with their jobs, and one that dies after it is found."""
    lease, clock = 6, stage.cluster.directory / "clock"  # which the server's user may read
    clock.write_text("+0")
    clock.chmod(0o644)
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    set_clock(stage, None, monkeypatch)
    often = json.dumps({"LEASE_SECONDS": lease, "SWEEP_SECONDS": 0.2})
    options = ("--threads", "1", "--poll-seconds", "0.2")
    both = [stage.start_worker(*options, TEST_DJANGO_JOBS=often) for _ in range(2)]
    paths = [tmp_path / "first", tmp_path / "second"]
    held = [jobs.hold.enqueue(str(path)) for path in paths]
    for path in paths:
        until_marked(path)
    boots = set(Worker.objects.values_list("pk", flat=True))

    def until_renewed_after(moment: datetime) -> None:
        renewed = Worker.objects.filter(status="running", heartbeat_at__gt=moment)
        until(lambda: renewed.count() == 2, what="both are renewed")

    until_renewed_after(database_time() + timedelta(seconds=lease))  # both sweep
    before = database_time()
    clock.write_text("+1h")
    until(lambda: database_time() > before + timedelta(minutes=50), what="the clock jumps")
    until_renewed_after(database_time() + timedelta(seconds=lease))
    assert set(Worker.objects.values_list("pk", flat=True)) == boots
    assert [len(lines(path)) for path in paths] == [1, 1]
    assert "event=database_clock_jumped" in "".join(worker.text() for worker in both)
    both[0].signal_all(signal.SIGKILL)
    for path in paths:
        let_go(path)
    ended = [until_status(job, "succeeded") for job in held]
    assert sorted(job.attempt for job in ended) == [1, 2]


@pytest.mark.django_db
def test_a_clock_of_the_database_that_goes_back_revives_no_lease() -> None:
    """As seen from the rows: what was over an hour ago lies two hours ahead."""
    late = register_worker(lease=-3600.0)
    held = enqueue_and_claim(worker=late)
    reaping.reap()
    run_sql(
        "UPDATE django_jobs_worker SET lease_expires_at = lease_expires_at + interval '3 hours'"
    )
    assert workers.renew([late], 30.0) == {}
    assert settle_one(held, Succeeded()).decision is None
    assert Job.objects.get(pk=held.id).status == "ready"


@pytest.mark.django_db
def test_ids_beyond_32_bits_work() -> None:
    beyond = 2**31 + 5
    for table in TABLES:
        run_sql(f"ALTER SEQUENCE {table}_id_seq RESTART WITH {beyond}")
    held = enqueue_and_claim(jobs.add, 1)
    settle_one(held, Succeeded(result="2"))
    run = Run.objects.get()
    assert min(held.id, held.worker, run.pk) >= beyond
    assert (run.job_id, run.worker_id) == (held.id, held.worker)
    assert Job.objects.get(pk=held.id).result == 2
