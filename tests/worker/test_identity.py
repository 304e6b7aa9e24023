"""Tables that begin again, or go back to an earlier time, under workers that live on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.db.models import F

from django_jobs.models import Job, Run, Worker
from tests.app import database_jobs
from tests.factories import run_sql

from .processes import (
    BEATS_OFTEN,
    REAPS_OFTEN,
    Start,
    let_go,
    lines,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes


def start_two(start_worker: Start, between: Callable[[], None] = lambda: None) -> set[int]:
    """Two commands that renew often; the ids of their workers before the second began."""
    arguments = ("--poll-seconds", "0.2", "--threads", "2")
    start_worker(*arguments, TEST_DJANGO_JOBS=BEATS_OFTEN)
    first = alive(1)
    between()
    start_worker(*arguments, TEST_DJANGO_JOBS=BEATS_OFTEN)
    return first


def alive(number: int) -> set[int]:
    """The ids of so many workers, once they live."""
    workers = Worker.objects.filter(status="running").values_list("pk", flat=True)
    until(lambda: workers.count() == number, what=f"{number} workers live")
    return set(workers)


def flush() -> None:
    after_deadlocks(lambda: call_command("flush", verbosity=0, interactive=False))


def after_deadlocks(work: Callable[[], object]) -> None:
    """Empty tables as an operator does under live workers: once more where it was the one of two
    in a deadlock that PostgreSQL ended."""
    while True:
        try:
            work()
            return
        except (CommandError, OperationalError) as error:
            if "deadlock detected" not in f"{error} {error.__cause__}":
                raise


def hold(tmp_path: Path, *names: str) -> list[tuple[Job, Path]]:
    """Jobs that wait until they are let go."""
    return [
        (database_jobs.hold_without_a_database.enqueue(str(tmp_path / name)), tmp_path / name)
        for name in names
    ]


def test_no_job_runs_twice_after_a_flush_under_two_workers(
    start_worker: Start, tmp_path: Path
) -> None:
    old = start_two(start_worker, between=flush)
    workers = alive(2)
    assert not old & workers
    held = hold(tmp_path, "a", "b", "c", "d")
    for _, path in held:
        until_marked(path)
    renewed = Worker.objects.filter(heartbeat_at__gt=F("started_at") + timedelta(seconds=3))
    until(lambda: renewed.count() == 2, what="both have renewed again and again")
    for job, path in held:
        let_go(path)
        assert until_status(job, "succeeded").attempt == 1
        assert len(lines(path)) == 1
    assert Run.objects.count() == 4
    assert alive(2) == workers


def test_a_handler_from_before_a_flush_ends_no_job_after_it(
    start_worker: Start, tmp_path: Path
) -> None:
    flush()
    start_two(start_worker)
    before = alive(2)
    ((old, _),) = hold(tmp_path, "old")
    until_marked(tmp_path / "old")
    flush()
    ((new, path),) = hold(tmp_path, "new")
    assert new.pk == old.pk == 1
    until_marked(path)
    let_go(tmp_path / "old")
    assert not before & alive(2)
    assert Job.objects.get().status == "running"
    let_go(path)
    until_status(new, "succeeded")
    assert Run.objects.get().job_id == new.pk


def test_a_job_with_the_id_of_one_still_running_is_another_job(
    start_worker: Start, tmp_path: Path
) -> None:
    """The jobs were truncated and count from 1 again; the worker's row is still there."""
    empty = "TRUNCATE django_jobs_job, django_jobs_run RESTART IDENTITY"
    after_deadlocks(lambda: run_sql(empty))
    worker = start_worker("--poll-seconds", "0.2", TEST_DJANGO_JOBS=BEATS_OFTEN)
    before = alive(1)
    ((old, _),) = hold(tmp_path, "old")
    until_marked(tmp_path / "old")
    after_deadlocks(lambda: run_sql(empty))
    ((new, path),) = hold(tmp_path, "new")
    assert new.pk == old.pk == 1
    until(lambda: "event=claimed_twice" in worker.text())
    let_go(tmp_path / "old")
    until_marked(path)
    assert not before & set(Job.objects.values_list("worker_id", flat=True))
    let_go(path)
    until_status(new, "succeeded")
    assert len(lines(path)) == Run.objects.count()


def test_workers_with_rows_from_a_backup_start_again(start_worker: Start, tmp_path: Path) -> None:
    """As after a backup was restored under them."""
    worker = start_worker("--poll-seconds", "0.2", TEST_DJANGO_JOBS=REAPS_OFTEN)
    before = alive(1)
    ((job, path),) = hold(tmp_path, "job")
    until_marked(path)
    until(Worker.objects.filter(heartbeat_at__gt=F("started_at")).exists)
    run_sql(
        "UPDATE django_jobs_worker SET heartbeat_at = heartbeat_at - interval '1 hour',"
        " lease_expires_at = lease_expires_at - interval '1 hour'"
    )
    until(lambda: "event=lease_lost" in worker.text())
    until_marked(path, times=2)
    assert not before & set(Job.objects.values_list("worker_id", flat=True))
    assert Worker.objects.filter(pk__in=before, status="lost").exists()
    let_go(path)
    until_status(job, "succeeded")
