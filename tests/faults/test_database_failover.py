"""The primary dies with commits that its standby never saw; its disk is full (D13, D16)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import DatabaseError, connection

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Run, Worker
from tests.app import database_jobs, jobs
from tests.clusters import IMMEDIATE
from tests.factories import run_sql
from tests.worker.processes import let_go, until, until_marked, until_status

from .proxy import Proxy
from .stage import Stage, queries_on
from .standby import Standby

pytestmark = pytest.mark.processes
POLL = ("--poll-seconds", "0.2")


@pytest.fixture
def small_disk(stage: Stage) -> Iterator[Stage]:
    """The partition of live jobs lies on a file system of eight megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system of a few megabytes")
    directory = Path(tempfile.mkdtemp(prefix="small-disk-", dir="/var/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True).returncode:
        directory.rmdir()
        pytest.skip("root may not mount a file system here")
    try:
        shutil.chown(directory, stage.cluster.directory.stat().st_uid)
        run_sql(f"CREATE TABLESPACE small LOCATION '{directory}'")
        run_sql("ALTER TABLE django_jobs_job_live SET TABLESPACE small")
        yield stage
        run_sql("DROP TABLE IF EXISTS filler")
        run_sql("ALTER TABLE django_jobs_job_live SET TABLESPACE pg_default")
        run_sql("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
        directory.rmdir()


def test_a_full_disk_refuses_enqueues_and_jobs_run_once_there_is_room(
    small_disk: Stage,
) -> None:
    waiting = jobs.noop.enqueue_many({} for _ in range(50))
    run_sql("CREATE TABLE filler (x text) TABLESPACE small")
    fill()
    with pytest.raises(DatabaseError, match="No space left"):
        enqueue_until_refused()
    worker = small_disk.start_worker(*POLL)
    until(lambda: "No space left" in worker.text(), what="the worker is told too")
    run_sql("DROP TABLE filler")
    done = Job.objects.filter(pk__in=waiting, status="succeeded")
    until(lambda: done.count() == 50, what="all run once there is room")
    assert set(Run.objects.values_list("attempt", "outcome")) == {(1, "succeeded")}


def enqueue_until_refused() -> None:
    for _ in range(2_000):
        jobs.write_effect.enqueue("x" * 200)


def fill() -> None:
    """Until not even a page is left."""
    for size in (1_000, 100, 1):
        try:
            while True:
                run_sql(
                    "INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, %s)",
                    [size],
                )
        except DatabaseError as full:
            if "No space left" not in str(full):
                raise


def test_after_a_failover_with_lost_commits_no_job_stays_running(stage: Stage, path: Path) -> None:
    """What was claimed in the lost commits runs again; what was enqueued in them is forgotten."""
    job_operations.pause(["bulk"])
    with Standby(stage.cluster) as standby, Proxy(connection.settings_dict) as proxy:
        worker = stage.start_worker(*POLL, "--lease-seconds", "60", DATABASE_URL=proxy.url)
        kept = until_status(jobs.noop.enqueue(), "succeeded")
        again = database_jobs.hold_without_a_database.using(queue="bulk").enqueue(str(path))
        boot = Worker.objects.get()
        standby.catch_up()
        standby.cut_off()
        job_operations.resume(["bulk"])
        until_marked(path)
        forgotten = until_status(jobs.noop.enqueue(), "succeeded")
        stage.cluster.stop(IMMEDIATE)
        standby.promote()
        proxy.server = f"{standby.directory}/.s.PGSQL.5432"
        proxy.cut_all()
        with queries_on(standby.url):
            assert Job.objects.get(pk=kept.pk).status == "succeeded"
            assert not Job.objects.filter(pk=forgotten.pk).exists()
            assert Job.objects.get(pk=again.pk).status == "ready"
            job_operations.resume(["bulk"])
            until_marked(path, times=2)  # its lease is longer
            let_go(path)
            assert until_status(again, "succeeded").attempt == 1
            until_status(jobs.noop.enqueue(), "succeeded")
            # The attempt of the lost commits has the same number, and is not taken for this one.
            assert Run.objects.get(job=again).worker_id != boot.pk
            assert not Job.objects.filter(status="running").exists()
        worker.end()
    stage.come_back()
    job_operations.resume(["bulk"])
