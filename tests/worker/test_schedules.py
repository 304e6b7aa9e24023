"""Recurring work with real processes: broken rows, edits, pauses, and workers that fire nothing.

The two days a year on which the clock changes are a matter of pure rules
(``tests/domain/test_cron.py``); outages, bad rows and many schedulers at once one of statements
(``tests/maintenance``). A jump of the clock is not injected, which would take a server with another
clock: rules see a jump ahead as they see an outage, and a jump back as a due time that is far away;
no due time is fired twice, because its tick is there.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Job, Schedule, Tick, Worker
from tests.app import jobs
from tests.factories import open_elsewhere, run_sql
from tests.zones import TOWN, tables, write_tables

from .firing import (
    database_time,
    each_second,
    fired,
    heartbeat_process,
    until_armed,
    until_fired,
    until_fires_on,
)
from .processes import (
    BEATS_OFTEN,
    LONG_POLL,
    Start,
    let_go,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes

BROKEN = {
    "out of range": {"cron": "61 * * * *"},
    "too few fields": {"cron": "* *"},
    "never true": {"cron": "* * 31 2 *"},
    "no rule": {"cron": ""},
    "no zone": {"cron": "* * * * *", "timezone": "Mars/Olympus_Mons"},
    "unknown queue": {"cron": "", "every": 1.0, "queue": "nowhere"},
    "wrong arguments": {"cron": "", "every": 1.0, "payload": {"what": 1}},
    "no dict": {"cron": "", "every": 1.0, "payload": [1]},
}


def test_broken_rows_get_an_error_and_the_others_fire(
    start_worker: Start,
) -> None:
    rows = [Schedule(name=name, job_type="app.noop", **what) for name, what in BROKEN.items()]
    Schedule.objects.bulk_create(rows)
    healthy = each_second()
    worker = start_worker("--poll-seconds", "0.2")
    in_error = Schedule.objects.exclude(error="")
    until(lambda: in_error.count() == len(rows), what="each broken row has its error")
    heart = heartbeat_process(worker)
    spent, begun = sum(heart.cpu_times()[:2]), database_time()
    until_fired(healthy, times=3, after=begun)
    passed = (database_time() - begun).total_seconds()
    assert sum(heart.cpu_times()[:2]) - spent < passed / 4  # no busy loop
    assert set(in_error.values_list("name", flat=True)) == set(BROKEN)
    assert worker.text().count("event=schedule_error") == len(rows)
    assert "Mars/Olympus_Mons" in in_error.get(name="no zone").error
    assert not Tick.objects.exclude(schedule=healthy).exists()


def test_a_schedule_of_each_second_is_caught_up_with_in_bounded_steps(start_worker: Start) -> None:
    """1,800 due times: each look makes at most 100 of them."""
    schedule = each_second(catch_up="window", catch_up_limit=86_400)
    Scheduling().look()
    run_sql("UPDATE django_jobs_schedule SET next_due_at = next_due_at - interval '30 minutes'")
    start_worker("--processes", "1")
    until(lambda: fired(schedule) >= 1_800)
    made = Counter(Tick.objects.values_list("created_at", flat=True))
    assert max(made.values()) <= 100


def test_an_edit_while_it_is_due_wins_and_the_others_do_not_wait_for_it(
    start_worker: Start,
) -> None:
    edited, healthy = each_second("edited"), each_second()
    start_worker("--poll-seconds", "0.2")
    until_fired(edited)
    with open_elsewhere(
        "UPDATE django_jobs_schedule SET every = 3600, starts_at = now() - interval "
        "'10 minutes', stale = true WHERE id = %s",
        [edited.pk],
    ) as other:
        held_since = database_time()
        until_fired(healthy, times=3, after=held_since)
        other.commit()
    until_armed(edited)
    until_fires_on(healthy)
    edited.refresh_from_db()
    assert edited.next_due_at == edited.starts_at + timedelta(hours=1)
    assert fired(edited, after=held_since) == 0


def test_a_change_takes_effect_before_the_next_poll(start_worker: Start) -> None:
    start_worker(*LONG_POLL)
    until(lambda: Worker.objects.filter(status="running").exists())
    first = each_second("made while workers sleep")
    schedule_operations.changed()
    until_armed(first)
    until_fires_on(first)
    second = each_second("far away", every=86_400.0)
    schedule_operations.changed()
    until_armed(second)
    Schedule.objects.filter(pk=second.pk).update(every=1.0)
    schedule_operations.changed()
    until_fires_on(second)


def test_a_pause_and_a_resume_take_effect_at_once(start_worker: Start) -> None:
    schedule, other = each_second(), each_second("other")
    start_worker(*LONG_POLL)
    until_fired(schedule)
    assert schedule_operations.pause([schedule.pk], reason="the service is down") == ["healthy"]
    paused_at = database_time()
    until_fired(other, times=3, after=paused_at)
    assert fired(schedule, after=paused_at) == 0
    resumed_at = database_time()  # before it: a due time right after the resume is fired
    schedule_operations.resume([schedule.pk])
    until_fires_on(schedule)
    missed = Tick.objects.filter(schedule=schedule, due_at__range=(paused_at, resumed_at))
    assert not missed.exists()


def test_a_waiting_job_runs_when_the_one_before_has_ended(start_worker: Start, path: Path) -> None:
    schedule = each_second(
        job_type="app.hold",
        payload={"path": str(path)},
        overlap="queue_one",
        enabled=False,
        catch_up="window",  # also what a slow machine missed
        catch_up_limit=3600,
    )
    Scheduling().look()
    schedule.enabled = True
    schedule.save()
    start_worker("--poll-seconds", "0.2")
    until_marked(path)
    first = Job.objects.get(status="running")
    second = until(lambda: Job.objects.filter(status="waiting").first())
    until(lambda: Tick.objects.filter(outcome="skipped_overlap").count() >= 2)
    schedule_operations.pause([schedule.pk])
    assert Job.objects.filter(status="waiting").count() == 1
    let_go(path)
    until_status(first, "succeeded")
    after = until_status(second, "succeeded")
    before = Job.objects.get(pk=first.pk)
    assert before.finished_at <= after.started_at
    assert second.scheduled_for == before.scheduled_for + timedelta(seconds=1)


def test_a_worker_with_newer_time_zone_tables_loses_no_due_time(
    start_worker: Start, tmp_path: Path
) -> None:
    ((now,),) = run_sql("SELECT date_trunc('minute', now())")
    due = {name: now + timedelta(minutes=minutes) for name, minutes in (("was", 30), ("is", -30))}
    rule = {"cron": f"{due['was'].minute} {due['was'].hour} * * *", "timezone": TOWN}
    with tables(tmp_path / "old", timedelta()):
        armed = Schedule.objects.create(name="town", job_type="app.noop", **rule)
        Schedule.objects.update(created_at=now - timedelta(hours=1))
        Scheduling().look()
        armed.refresh_from_db()
    assert (armed.next_due_at, Tick.objects.count()) == (due["was"], 0)
    start_worker(PYTHONTZPATH=write_tables(tmp_path / "new", timedelta(hours=1)))
    until(lambda: Tick.objects.exists())
    tick = Tick.objects.get()
    assert (tick.outcome, tick.due_at) == ("fired", due["is"])
    armed.refresh_from_db()
    assert armed.next_due_at == due["is"] + timedelta(days=1)


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
