"""Faults of recurring work (B14 and B16 to B18 of the list of faults), with real processes.

B15, the two days a year on which the clock changes, is a matter of pure rules: see
``tests/domain/test_cron.py``. Here are broken rows, outages, many schedulers and edits; deaths are
in ``test_schedules_survive.py``. A jump of the clock is not injected, which would take a server
with a clock of its own: rules see a jump ahead as they see an outage, and a jump back as a due time
that is far away; no due time is fired twice, whatever the clock says, because its tick is there.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from django_jobs.domain.due_times import MOST_MISSED_TICKS
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Job, Schedule, Tick, Worker
from tests.factories import another_connection, in_threads, run_sql
from tests.zones import TOWN, tables, write_tables

from .firing import (
    database_time,
    each_second,
    fired,
    heartbeat_process,
    set_due,
    until_armed,
    until_fired,
    until_fires_on,
)
from .processes import (
    LONG_POLL,
    JobWorker,
    end_other_sessions,
    let_go,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes
Start = Callable[..., JobWorker]

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


def test_a_rule_broken_after_it_was_armed_gets_an_error_when_due(
    start_worker: Start,
) -> None:
    """As with a zone that tzdata dropped, or a row that somebody changed by SQL."""
    healthy, zoneless, cronless = each_second(), each_second("no zone"), each_second("no cron")
    worker = start_worker("--poll-seconds", "0.2")
    for schedule in (zoneless, cronless):
        until_fired(schedule)
    run_sql(
        "UPDATE django_jobs_schedule SET every = NULL, cron = CASE id WHEN %s THEN '61 * * * *' "
        "ELSE '* * * * *' END, timezone = CASE id WHEN %s THEN 'Europe/Atlantis' ELSE 'UTC' END "
        "WHERE id = ANY(%s)",
        [cronless.pk, zoneless.pk, [cronless.pk, zoneless.pk]],
    )
    until(lambda: Schedule.objects.exclude(error="").count() == 2)
    until_fires_on(healthy)
    assert worker.text().count("event=schedule_error") == 2
    Schedule.objects.filter(pk=zoneless.pk).update(every=1.0, cron="", timezone="UTC")
    schedule_operations.resume([zoneless.pk])
    until_fires_on(zoneless)


UNREADABLE = {
    "payload": '\'{"n": ' + "9" * 5001 + "}'",
    "starts_at": "'infinity'",
    "ends_at": "'20000-01-01'",
    "next_due_at": "'-infinity'",
}


@pytest.mark.parametrize("column", ["payload", "starts_at", "ends_at", "next_due_at"])
def test_a_row_that_python_cannot_read_stops_no_other_job(start_worker: Start, column: str) -> None:
    healthy, unreadable = each_second(), each_second("unreadable")
    worker = start_worker("--poll-seconds", "0.2")
    until_fired(unreadable)
    run_sql(
        f"UPDATE django_jobs_schedule SET {column} = {UNREADABLE[column]} WHERE id = %s",
        [unreadable.pk],
    )
    until(lambda: "event=schedule_error" in worker.text())
    until_fires_on(healthy)


MISSED = {
    "latest": ({"catch_up": "latest"}, 1, 17),
    "skip": ({"catch_up": "skip"}, 0, 18),
    "at most three": ({"catch_up": "at_most", "catch_up_limit": 3}, 3, 15),
    "those of an hour": ({"catch_up": "window", "catch_up_limit": 3600}, 6, 12),
}


def test_after_an_outage_each_schedule_catches_up_by_its_policy(
    start_worker: Start,
) -> None:
    began = database_time() - timedelta(hours=10, minutes=5)
    schedules = {
        name: each_second(name, every=600.0, starts_at=began, **fields)
        for name, (fields, _, _) in MISSED.items()
    }
    busy = each_second("each second", catch_up="latest", starts_at=began)
    worker = start_worker()
    until_armed(*schedules.values(), busy)
    until_fired(busy)
    worker.signal_all(signal.SIGKILL)
    worker.wait()
    end_other_sessions()
    Tick.objects.all().delete()
    Job.objects.all().delete()
    for schedule in (*schedules.values(), busy):
        set_due(schedule, timedelta(hours=3))
    down_until = database_time()
    start_worker()
    until(lambda: not Schedule.objects.filter(next_due_at__lt=down_until).exists())
    for name, (_, made, late) in MISSED.items():
        ticks = Tick.objects.filter(schedule=schedules[name])
        found = list(ticks.order_by("due_at").values_list("outcome", flat=True))
        assert found == ["skipped_late"] * late + ["fired"] * made, name
        due = list(ticks.filter(outcome="fired").order_by("due_at").values_list("due_at"))
        asked = Job.objects.filter(schedule=schedules[name]).order_by("id")
        assert list(asked.values_list("scheduled_for")) == due
    # Until it was up again; a look that is held up is made up for as well.
    ticks = Tick.objects.filter(schedule=busy, due_at__lte=down_until)
    assert fired(busy) - fired(busy, after=down_until) <= 1
    assert ticks.filter(outcome="skipped_late").count() <= MOST_MISSED_TICKS
    assert ticks.filter(outcome="suppressed").count() == 1


def test_a_schedule_of_each_second_is_caught_up_with_in_bounded_steps(start_worker: Start) -> None:
    """1,800 due times: each look makes at most 100 of them."""
    schedule = each_second(catch_up="window", catch_up_limit=86_400)
    Scheduling().look()
    run_sql("UPDATE django_jobs_schedule SET next_due_at = next_due_at - interval '30 minutes'")
    start_worker("--processes", "1")
    until(lambda: fired(schedule) >= 1_800)
    made = Counter(Tick.objects.values_list("created_at", flat=True))
    assert max(made.values()) <= 100


def test_ten_schedulers_at_once_fire_each_due_time_once(start_worker: Start) -> None:
    """Three trees of processes, and seven more schedulers in threads of this one."""
    schedules = [
        each_second(f"schedule {number}", catch_up="window", catch_up_limit=60)
        for number in range(20)
    ]
    workers = [start_worker() for _ in range(3)]
    until(lambda: Worker.objects.filter(status="running").count() == 3)
    enough = threading.Event()

    def look_again_and_again(number: int) -> None:
        scheduling = Scheduling()
        while not enough.is_set():
            enough.wait(min(scheduling.look(), 0.2))

    def stop_when_enough(number: int) -> None:
        if number < 7:
            look_again_and_again(number)
            return
        try:
            until(lambda: Tick.objects.count() >= len(schedules) * 5)
        finally:
            enough.set()

    in_threads(8, stop_when_enough)
    for worker in workers:  # or they would fire on while it is counted
        worker.end()
    end_other_sessions()
    for schedule in schedules:
        ticks = Tick.objects.filter(schedule=schedule).order_by("due_at")
        due = list(ticks.values_list("due_at", flat=True))
        assert due == [due[0] + timedelta(seconds=number) for number in range(len(due))]
        assert set(ticks.values_list("outcome", flat=True)) == {"fired"}
    made = Job.objects.values_list("schedule_id", "scheduled_for")
    assert made.count() == made.distinct().count() == Tick.objects.count()
    assert set(made) == set(Tick.objects.values_list("schedule_id", "due_at"))


def test_an_edit_while_it_is_due_wins_and_the_others_do_not_wait_for_it(
    start_worker: Start,
) -> None:
    edited, healthy = each_second("edited"), each_second()
    start_worker("--poll-seconds", "0.2")
    until_fired(edited)
    with another_connection() as other:
        other.ensure_connection()
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(
                "UPDATE django_jobs_schedule SET every = 3600, starts_at = now() - interval "
                "'10 minutes', stale = true WHERE id = %s",
                [edited.pk],
            )
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


def test_a_waiting_job_runs_when_the_one_before_has_ended(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "job"
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


def test_a_schedule_pauses_itself_after_dead_jobs_in_a_row(start_worker: Start) -> None:
    schedule = each_second(job_type="app.fail", pause_after_dead=2)
    worker = start_worker()
    until(lambda: Schedule.objects.filter(paused_at__isnull=False).exists())
    schedule.refresh_from_db()
    assert schedule.paused_reason == "its last 2 jobs are dead"
    until(lambda: "event=schedule_paused" in worker.text())
    until(lambda: not Job.objects.exclude(status="dead").exists())
    paused = Job.objects.count()
    schedule_operations.resume([schedule.pk])
    until(lambda: Job.objects.count() > paused, what="what was before the resume is forgiven")


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
