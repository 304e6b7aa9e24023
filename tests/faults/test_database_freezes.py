"""The server stands still while its connections survive, as on a machine that is moved (D9)."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection

from django_jobs.domain.maintenance import LeasesInDoubt
from django_jobs.lifecycle import workers
from django_jobs.maintenance.tasks import Reaping
from django_jobs.models import Worker
from tests.app import jobs
from tests.clusters import Cluster
from tests.factories import register_worker, run_sql
from tests.worker.firing import database_time
from tests.worker.processes import lines, until, until_marked, until_status

from .stage import Stage, queries_on

pytestmark = pytest.mark.processes


def test_a_sweep_that_the_server_reads_late_takes_no_worker_as_lost(stage: Stage) -> None:
    """It lay in the socket while the leases ran out, and the renewals did too."""
    worker = register_worker(lease=6.0)
    sweep, sent = Reaping(), threading.Event()
    backend: list[psutil.Process] = []

    def note(execute: Any, *statement: Any) -> Any:
        sent.set()
        return execute(*statement)

    def reap_in_a_stopped_session() -> None:
        with queries_on(stage.cluster.url):
            assert sweep.run_once() == 0
            ((pid,),) = run_sql("SELECT pg_backend_pid()")
            backend.append(psutil.Process(pid))
            backend[0].suspend()
            with connection.execute_wrapper(note):
                sweep.run_once()

    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(reap_in_a_stopped_session)
        try:
            until(sent.is_set, what="the sweep is sent")
            over = Worker.objects.get().lease_expires_at
            until(lambda: database_time() > over, what="the lease is over")
        finally:
            for one in backend:
                one.resume()
        with pytest.raises(LeasesInDoubt):
            late.result()
    assert list(workers.renew([worker], 0.0)) == [worker]
    assert sweep.run_once() == 0  # its clock agrees again, and the lease is over
    assert Worker.objects.get().status == "lost"


@contextlib.contextmanager
def standing_still(cluster: Cluster) -> Iterator[None]:
    """Stop all processes of the server."""
    postmaster = cluster.postmaster
    postmaster.suspend()  # so that it starts no other
    children = postmaster.children(recursive=True)
    try:
        for child in children:
            child.suspend()
        yield
    finally:
        for process in (*children, postmaster):
            process.resume()


def test_leases_that_ran_out_while_the_server_stood_still_are_renewed_by_live_workers(
    stage: Stage, tmp_path: Path
) -> None:
    lease = 6
    often = json.dumps({"LEASE_SECONDS": lease, "SWEEP_SECONDS": 0.2})
    paths = [tmp_path / f"job-{number}" for number in range(4)]
    for _ in range(2):
        stage.start_worker("--threads", "2", "--poll-seconds", "0.2", TEST_DJANGO_JOBS=often)
    until(lambda: Worker.objects.count() == 2)
    since = database_time()
    until(lambda: database_time() > since + timedelta(seconds=lease), what="both sweep")
    held = [jobs.sleep_deaf.enqueue(str(path), 1.0) for path in paths]
    for path in paths:
        until_marked(path)
    boots = set(Worker.objects.values_list("pk", flat=True))
    connection.close()
    with standing_still(stage.cluster):
        stopped_at = time.monotonic()
        until(lambda: time.monotonic() > stopped_at + 1.5 * lease)  # the time is the condition
    for job in held:
        assert until_status(job, "succeeded").attempt == 1
    renewed = Worker.objects.filter(status="running", lease_expires_at__gt=database_time())
    until(lambda: renewed.count() == 2, what="both have renewed")
    assert set(Worker.objects.values_list("pk", flat=True)) == boots
    assert [len(lines(path)) for path in paths] == [1] * 4
