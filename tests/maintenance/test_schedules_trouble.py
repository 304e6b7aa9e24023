"""Bad rows, crashes, and many at once: each due time is fired once all the same."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction
from pytest_django import DjangoCaptureOnCommitCallbacks

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.maintenance import schedules as maintenance
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Job, Schedule, Tick
from django_jobs.signals import worker_event
from tests.factories import (
    due_schedule,
    heard,
    in_threads,
    look,
    open_elsewhere,
    overdue,
    run_sql,
)
from tests.maintenance.test_schedules import come_due, outcomes

pytestmark = pytest.mark.django_db


BAD = {
    "a broken cron": "cron = '* * *', every = NULL",
    "a rule that never fires": "cron = '0 0 30 2 *', every = NULL",
    "both rules": "cron = 'x', every = NULL",
    "no rule": "every = NULL",
    "an interval that is none": "every = 'NaN'",
    "an interval too short": "every = 0",
    "a zone that is gone": "cron = '* * * * *', every = NULL, timezone = 'Europe/Kiew2'",
    "an unknown choice for DST": "cron = '* * * * *', every = NULL, dst = 'x'",
    "an unknown queue": "queue = 'nowhere'",
    "a queue of no name": "queue = 'a b'",
    "a payload that does not fit": """payload = '{"first": 1}'""",
    "a payload that is a list": "payload = '[1]'",
    "a payload that is null": "payload = 'null'",
    "a number that cannot be read": "payload = ('{\"n\": ' || repeat('9', 5000) || '}')::jsonb",
    "a payload that is too large": "payload = jsonb_build_object('n', repeat('x', 2000000))",
    "a start that is never": "starts_at = 'infinity'",
    "an end that was always": "ends_at = '-infinity'",
    "an end out of the calendar": "ends_at = '20000-01-01'",
    "a due time that was always": "next_due_at = '-infinity'",
    "jitter for ever": "jitter_seconds = 'infinity'",
    "jitter that is no number": "jitter_seconds = 'NaN'",
    "jitter out of the calendar": "jitter_seconds = 1e300",
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_gets_an_error_and_the_others_fire(
    what: str, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    others = [due_schedule(name=f"good {n}") for n in range(3)]
    bad = due_schedule(name="bad")
    others += [due_schedule(name=f"better {n}") for n in range(2)]
    run_sql(f"UPDATE django_jobs_schedule SET {BAD[what]} WHERE id = %s", [bad.pk])
    with heard(worker_event) as events, django_capture_on_commit_callbacks(execute=True):
        look()
    assert [outcomes(other) for other in others] == [["fired ready"]] * 5
    rows = Schedule.objects.filter(pk=bad.pk).values_list("error", "next_due_at", "stale")
    ((error, next_due_at, stale),) = rows
    assert error
    assert (next_due_at, stale) == (None, False)
    assert not Tick.objects.filter(schedule=bad).exists()
    assert [event["sender"] for event in events] == ["schedule_error"]
    assert events[0]["fields"] == {"schedule": "bad", "reason": error}


@pytest.mark.parametrize("what", ["a broken cron", "a start that is never"])
def test_a_bad_row_gets_an_error_when_its_next_due_time_is_computed(what: str) -> None:
    bad, good = (Schedule.objects.create(name=n, job_type="app.noop", every=60) for n in "ab")
    run_sql(f"UPDATE django_jobs_schedule SET {BAD[what]} WHERE id = %s", [bad.pk])
    look()
    assert Schedule.objects.filter(pk=bad.pk, stale=False).exclude(error="").exists()
    good.refresh_from_db()
    assert good.next_due_at is not None


def test_a_corrected_row_fires_again_from_then_on() -> None:
    schedule = overdue(3.1)
    run_sql("UPDATE django_jobs_schedule SET queue = 'nowhere'")
    look()
    schedule.refresh_from_db()
    assert "no queue is named 'nowhere'" in schedule.error
    schedule.queue = ""
    schedule.save()
    look()
    assert outcomes(schedule) == []
    come_due(schedule)
    assert outcomes(schedule) == ["fired ready"]


@pytest.mark.django_db(transaction=True)
def test_ten_schedulers_at_once_fire_each_due_time_once() -> None:
    count = 300
    # Not on the hour, where a fourth due time could come while they fire.
    ((begun,),) = run_sql("SELECT now() - interval '2.5 hours'")
    rows = [
        Schedule(name=f"s{n}", job_type="app.noop", every=3600.0, starts_at=begun)
        for n in range(count)
    ]
    Schedule.objects.bulk_create(rows)
    look()
    run_sql(
        "UPDATE django_jobs_schedule SET next_due_at = starts_at,"
        " catch_up = 'window', catch_up_limit = 100000, overlap = 'queue_all'"
    )

    def fire(number: int) -> None:
        process = Scheduling()
        while process.look() <= 0.1:
            pass

    in_threads(10, fire)
    assert Tick.objects.filter(outcome="fired").count() == Job.objects.count() == 3 * count
    made = set(Job.objects.values_list("schedule_id", "scheduled_for"))
    assert len(made) == 3 * count
    assert made == set(Tick.objects.values_list("schedule_id", "due_at"))
    assert Job.objects.filter(status="ready").count() == count


@pytest.mark.django_db(transaction=True)
def test_locked_schedules_are_skipped_and_looked_at_again_soon() -> None:
    schedule = due_schedule()
    process = Scheduling()
    with open_elsewhere("SELECT 1 FROM django_jobs_schedule FOR UPDATE"):
        pauses = [process.look() for _ in range(12)]
    assert pauses[:3] == [0.01, 0.02, 0.04]
    assert pauses[-1] == 1.0
    assert not Job.objects.exists()
    look()
    assert outcomes(schedule) == ["fired ready"]


@pytest.mark.django_db(transaction=True)
def test_a_crash_before_the_commit_leaves_nothing_and_the_next_look_fires() -> None:
    schedule = due_schedule()
    run_sql(
        "CREATE FUNCTION pg_temp.fall() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'gone' USING ERRCODE = '57P01'; END $$"
    )
    run_sql(
        "CREATE CONSTRAINT TRIGGER fall AFTER INSERT ON django_jobs_job"
        " INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.fall()"
    )
    try:
        with pytest.raises(Exception, match="gone"):
            Scheduling().look()
    finally:
        run_sql("DROP TRIGGER fall ON django_jobs_job")
    assert (Tick.objects.count(), Job.objects.count()) == (0, 0)
    before = schedule.next_due_at
    schedule.refresh_from_db()
    assert (schedule.next_due_at, schedule.error) == (before, "")
    look()
    assert outcomes(schedule) == ["fired ready"]


@pytest.mark.django_db(transaction=True)
def test_cancels_and_schedulers_do_not_deadlock() -> None:
    rows = [
        Schedule(
            name=f"s{n}",
            job_type="app.noop",
            every=3600.0,
            overlap=("cancel", "queue_all")[n % 2],
            catch_up="window",
            catch_up_limit=1e6,
        )
        for n in range(60)
    ]
    Schedule.objects.bulk_create(rows)
    look()

    def act(number: int) -> None:
        process = Scheduling()
        for turn in range(8):
            if number < 3:
                process.look()
            elif number == 3:
                run_sql(
                    "UPDATE django_jobs_schedule SET next_due_at ="
                    " date_trunc('hour', now()) - make_interval(hours => %s)",
                    [100 - turn],
                )
            else:
                job_operations.cancel(
                    Job.objects.order_by("-id").values_list("pk", flat=True)[:200]
                )

    in_threads(6, act)
    assert Tick.objects.filter(outcome="fired").count() == Job.objects.count()


def test_a_schedule_that_is_fired_meanwhile_is_deleted_with_its_new_tick() -> None:
    schedule = due_schedule()
    look()
    Schedule.objects.filter(pk=schedule.pk).delete()
    assert not Tick.objects.exists()
    assert Job.objects.count() == 1


def test_a_second_tick_of_a_due_time_is_refused_by_the_table_itself() -> None:
    schedule = due_schedule()
    look()
    tick = Tick.objects.get()
    with pytest.raises(IntegrityError), transaction.atomic():
        Tick.objects.create(
            schedule=schedule,
            due_at=tick.due_at,
            outcome="fired",
            late_seconds=0,
            created_at=tick.created_at,
        )


DUE_IN = """
SELECT date_part('epoch', starts_at - clock_timestamp()) FROM django_jobs_schedule WHERE id = %s
"""


@pytest.mark.django_db(transaction=True)
def test_a_locked_schedule_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "LONGEST_PAUSE", 86_400.0)
    due_schedule(name="locked")
    soon = due_schedule(-3_600, name="soon")
    scheduling = Scheduling()
    scheduling._pause = 7_200.0  # as after many looks

    def pauses(number: int) -> tuple[float, float]:
        ((due_in,),) = run_sql(DUE_IN, [soon.pk])
        return scheduling.look(), due_in

    with transaction.atomic():
        list(Schedule.objects.select_for_update().filter(name="locked"))
        ((pause, due_in),) = in_threads(1, pauses)
    assert 0 < pause <= due_in


@pytest.mark.django_db(transaction=True)
def test_a_locked_job_keeps_no_schedule_from_firing() -> None:
    replaces = due_schedule(name="replaces", overlap="cancel")
    look()
    (old,) = Job.objects.all()
    come_due(replaces)  # it is free: the first is cancelled
    assert Job.objects.get(pk=old.pk).status == "cancelled"
    (live,) = Job.objects.exclude(pk=old.pk)
    due_schedule(name="innocent")
    Schedule.objects.filter(pk=replaces.pk).update(next_due_at=replaces.starts_at, stale=False)
    Tick.objects.filter(schedule=replaces).delete()
    with transaction.atomic():
        list(Job.objects.select_for_update().filter(pk=live.pk))
        in_threads(1, lambda number: look())
        assert outcomes(Schedule.objects.get(name="innocent")) == ["fired ready"]
    assert Job.objects.get(pk=live.pk).status == "ready"


def test_schedules_in_error_are_retried_when_a_worker_starts() -> None:
    schedule = due_schedule(payload={"first": 1})
    working = Scheduling()
    working.look()
    schedule.refresh_from_db()
    assert "PayloadError" in schedule.error
    run_sql("UPDATE django_jobs_schedule SET payload = '{}'")  # as the new code takes it
    working.look()
    schedule.refresh_from_db()
    assert schedule.error
    Scheduling().look()
    schedule.refresh_from_db()
    assert schedule.error == ""
    assert schedule.next_due_at is not None


def test_missed_due_times_of_many_schedules_are_written_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "MOST_TICKS", 50)
    for number in range(6):
        overdue(20.5, name=str(number), catch_up="window", catch_up_limit=86_400, overlap="allow")
    scheduling = Scheduling()
    assert scheduling.look() == 0.0
    assert Job.objects.count() == 3 * 21
    assert scheduling.look() == 0.0
    assert Job.objects.count() == 6 * 21


def test_due_times_on_time_do_not_wait_behind_missed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "BATCH", 2)
    monkeypatch.setattr(maintenance, "MOST_TICKS", 10)
    for number in range(4):
        overdue(20.5, name=str(number), catch_up="window", catch_up_limit=86_400, overlap="allow")
    due_schedule(name="on time")
    scheduling = Scheduling()
    assert scheduling.look() == 0.0
    assert outcomes(Schedule.objects.get(name="on time")) == ["fired ready"]
    assert Job.objects.count() == 1 + 21
