"""The database answers no more, late, or is asked late (D7, D8)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from django_jobs.models import Job, Run, Worker
from tests.app import database_jobs, jobs
from tests.app.models import Effect
from tests.worker.processes import Start, let_go, until, until_marked, until_status

from .proxy import Proxy

pytestmark = pytest.mark.processes
LEASE = 6


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    with Proxy(connection.settings_dict) as own:
        yield own


def test_a_worker_in_a_black_hole_stops_its_handler_before_another_starts(
    proxy: Proxy, start_worker: Start, tmp_path: Path
) -> None:
    options = ("--lease-seconds", str(LEASE), "--poll-seconds", "0.2")
    cut_off = start_worker(*options, DATABASE_URL=proxy.url)
    job = database_jobs.look_for_others.enqueue(str(tmp_path / "job"))
    until_marked(tmp_path / "job")
    proxy.swallow()
    others = [jobs.write_effect.enqueue(f"{number}") for number in range(20)]
    second = start_worker(*options)
    until(lambda: "event=fenced" in cut_off.text(), what="it stops its handler")
    assert until_status(job, "succeeded").result == []
    for one in others:
        until_status(one, "succeeded")
    assert second.drain() == 0
    proxy.let_pass()  # what it asked long ago is done now as well
    after = [jobs.write_effect.enqueue("after") for _ in range(20)]
    for one in after:
        until_status(one, "succeeded")
    assert Effect.objects.count() == 40
    assert Run.objects.filter(job=job).count() == 2
    assert not Job.objects.exclude(status="succeeded").exists()


def test_a_claim_that_arrives_after_its_timeout_strands_no_job(
    proxy: Proxy, start_worker: Start
) -> None:
    """The lease outlives the silence, so the jobs are its worker's, and nobody knows of them."""
    worker = start_worker("--lease-seconds", "20", "--poll-seconds", "0.2", DATABASE_URL=proxy.url)
    until_status(jobs.noop.enqueue(), "succeeded")
    proxy.swallow()
    late = [jobs.write_effect.enqueue(f"{number}") for number in range(20)]
    until(lambda: "event=claim_blocked" in worker.text(), what="the claim is given up")
    proxy.let_pass()
    for one in late:
        assert until_status(one, "succeeded").attempt == 1
    assert Effect.objects.count() == 20


def test_behind_a_slow_line_beats_come_in_time_and_each_job_runs_once(
    proxy: Proxy, start_worker: Start, tmp_path: Path
) -> None:
    """Every question takes a second; the connections are there already."""
    lease, path = 12, tmp_path / "job"
    options = ("--lease-seconds", str(lease), "--poll-seconds", "0.2")
    worker = start_worker(*options, DATABASE_URL=proxy.url)
    held = database_jobs.hold_without_a_database.enqueue(str(path))
    until_marked(path)
    until_status(jobs.noop.enqueue(), "succeeded")
    boot = Worker.objects.get()
    until(Worker.objects.filter(heartbeat_at__gt=boot.heartbeat_at).exists, what="it beats")
    proxy.delay = 1.0
    others = [jobs.add.enqueue(number) for number in range(20)]
    for one in others:
        assert until_status(one, "succeeded").attempt == 1
    beaten = Worker.objects.filter(heartbeat_at__gt=boot.heartbeat_at + timedelta(seconds=lease))
    until(beaten.exists, what="beats go on for longer than a lease")
    let_go(path)
    assert until_status(held, "succeeded").attempt == 1
    assert Worker.objects.get() == boot
    assert Run.objects.count() == 22
    assert "event=fenced" not in worker.text()
