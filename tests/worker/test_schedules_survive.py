"""Schedules are fired on after deaths, lost connections and restarts, and where they are not to be
fired, they are not. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Job, Tick, Worker
from tests.app import jobs
from tests.clusters import FAST, Cluster
from tests.factories import run_sql

from .firing import (
    database_time,
    each_second,
    fired,
    heartbeat_process,
    until_fired,
    until_fires_on,
)
from .processes import (
    BEATS_OFTEN,
    PATIENCE,
    PROJECT,
    JobWorker,
    end_other_sessions,
    until,
    until_status,
)

pytestmark = pytest.mark.processes
Start = Callable[..., JobWorker]


def test_a_new_heartbeat_process_fires_after_the_old_one_is_killed(start_worker: Start) -> None:
    schedule = each_second(catch_up="window", catch_up_limit=60)
    worker = start_worker()
    until_fired(schedule)
    heartbeat_process(worker).kill()
    until(lambda: "event=heartbeat_died" in worker.text())
    until_fires_on(schedule)
    due = list(Tick.objects.order_by("due_at").values_list("due_at", flat=True))
    assert due == [due[0] + timedelta(seconds=number) for number in range(len(due))]


def test_terminated_connections_do_not_end_the_firing(start_worker: Start) -> None:
    schedule = each_second()
    start_worker()
    until_fired(schedule)
    for _ in range(3):
        end_other_sessions()
        until_fires_on(schedule)


FAULTY = """
import os, django
django.setup()
from django_jobs import logs
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options
from django_jobs.worker.heartbeat.upkeep import Upkeep

logs.to_stderr(20)
logs.connect(20)
looks = iter([RuntimeError("a fault of ours"), None])

def look():
    fault = next(looks)
    if fault is None:
        os._exit(75)
    raise fault

Upkeep((), look, Scoreboard(1), Options(queues=(), poll=0.1)).run()
"""


@pytest.mark.usefixtures("transactional_db")
def test_no_exception_ends_the_thread_that_fires() -> None:
    name = str(connection.settings_dict["NAME"])
    done = subprocess.run(
        [sys.executable, "-c", FAULTY],
        cwd=PROJECT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TEST_DATABASE_NAME": name,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 75, done.stderr
    assert "event=schedules_failed" in done.stderr
    assert "a fault of ours" in done.stderr


def test_a_restart_of_the_database_does_not_end_the_firing(tmp_path: Path) -> None:
    with Cluster() as cluster:
        cluster.fetch(
            "INSERT INTO django_jobs_schedule (name, job_type, payload, queue, cron, every, "
            "timezone, enabled, jitter_seconds, dst, overlap, catch_up, declared, paused_reason, "
            "error, stale, created_at) VALUES ('each second', 'app.noop', '{}', '', '', 1, 'UTC', "
            "true, 0, 'once', 'allow', 'latest', false, '', '', true, now()) RETURNING id"
        )

        def fires() -> bool:
            recent = "SELECT count(*) FROM django_jobs_tick WHERE due_at > %s AND late_seconds < 1"
            ((now,),) = cluster.fetch("SELECT clock_timestamp()")
            until(lambda: cluster.fetch(recent, [now])[0][0] >= 2)
            return True

        worker = JobWorker(
            log=tmp_path / "worker.log", DATABASE_URL=cluster.url, TEST_DATABASE_NAME="postgres"
        )
        try:
            assert fires()
            away_since = time.monotonic()
            cluster.stop(FAST)
            until(lambda: "event=database_error" in worker.text())
            cluster.start()
            assert fires()
            # Once in five seconds, however long it takes to start.
            most = 2 + (time.monotonic() - away_since) // 5
            assert worker.text().count("event=database_error") <= most
            assert "Traceback" not in worker.text(), worker.text()
        finally:
            worker.end()


def test_workers_with_schedules_off_fire_none(start_worker: Start, tmp_path: Path) -> None:
    schedule = each_second()
    Scheduling().look()
    (tmp_path / "quiet_settings.py").write_text(
        "from tests.settings import *\n"
        "from tests.settings import DJANGO_JOBS\n"
        "DJANGO_JOBS = {**DJANGO_JOBS, 'SCHEDULES': False}\n"
    )
    begun = database_time()
    start_worker(
        DJANGO_SETTINGS_MODULE="quiet_settings",
        TEST_DJANGO_JOBS=BEATS_OFTEN,
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    )
    until_status(jobs.noop.enqueue(), "succeeded")
    beat_on = Worker.objects.filter(heartbeat_at__gt=begun + timedelta(seconds=3))
    until(lambda: beat_on.exists())
    assert Worker.objects.get().schedules_seen_at is None
    assert fired(schedule) == 0
    start_worker()
    until_fires_on(schedule)


def test_a_burst_fires_nothing(start_worker: Start) -> None:
    schedule = each_second()
    Scheduling().look()
    run_sql("UPDATE django_jobs_schedule SET next_due_at = next_due_at - interval '1 minute'")
    job = jobs.noop.enqueue()
    assert start_worker("--burst").wait() == 0
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert fired(schedule) == 0


def test_a_worker_says_when_it_last_looked_at_the_schedules(start_worker: Start) -> None:
    start_worker("--poll-seconds", "0.2", "--processes", "2", TEST_DJANGO_JOBS=BEATS_OFTEN)
    seen = Worker.objects.filter(schedules_seen_at__isnull=False)
    until(lambda: seen.count() == 2)
    first = database_time()
    until(lambda: seen.filter(schedules_seen_at__gt=first).count() == 2)
    assert not seen.filter(schedules_seen_at__gt=database_time()).exists()
