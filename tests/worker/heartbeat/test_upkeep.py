"""The thread of schedules and maintenance tasks: neither keeps the other from its turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import SimpleNamespace

import pytest
from django.db import DataError, ProgrammingError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from django_jobs.domain.maintenance import MaintenanceTask
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.maintenance.tasks import maintenance_tasks
from django_jobs.models import Schedule
from django_jobs.signals import worker_event
from django_jobs.worker.connections import drop_connection, own_connection
from django_jobs.worker.heartbeat.upkeep import Scheduler, TaskRunner, Upkeep
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options
from django_jobs.worker.poller import LINGER_SECONDS
from tests.factories import end_own_session, fold_runs, heard, run_sql
from tests.worker.processes import until

pytestmark = pytest.mark.django_db(transaction=True)


def fail() -> float:
    raise ProgrammingError("permission denied for table django_jobs_tick")


def refused() -> float:
    run_sql("SELECT 1 / 0")
    return 0.0


def turns(upkeep: Upkeep, until_true: Callable[[], bool]) -> None:
    def thread() -> None:
        own_connection()
        upkeep.deadline.watch()

        def turn() -> bool:
            upkeep.turn()
            return until_true()

        until(turn)
        drop_connection()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(thread).result()


def break_down() -> float:
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize(
    "look, error",
    [(fail, "permission denied"), (refused, "division by zero"), (break_down, "a fault of ours")],
)
def test_maintenance_tasks_run_although_the_schedules_fail(
    look: Callable[[], float], error: str
) -> None:
    done: list[int] = []

    def run_once() -> int:
        done.append(1)
        return 0

    task = MaintenanceTask(name="counting", every=0.1, batch=1, run_once=run_once)
    upkeep = Upkeep([task], look, Scoreboard(1), Options(queues=(), beat=0.1, poll=0.05))
    with heard(worker_event) as events:
        turns(upkeep, lambda: len(done) >= 3)
    failed = [one["fields"]["error"] for one in events if one["sender"] == "schedules_failed"]
    assert failed
    assert error in failed[0]


def test_schedules_fire_although_a_maintenance_task_fails() -> None:
    looks: list[int] = []

    def look() -> float:
        looks.append(1)
        return 0.05

    def run_once() -> int:
        return int(refused())

    task = MaintenanceTask(name="failing", every=0.1, batch=1, run_once=run_once)
    upkeep = Upkeep([task], look, Scoreboard(1), Options(queues=(), beat=0.1, poll=0.05))
    turns(upkeep, lambda: len(looks) >= 3)


def test_a_receiver_finds_its_other_database_again_after_an_outage(other_database: str) -> None:
    sessions: list[int] = []

    def run_once() -> int:
        sessions.append(end_own_session(other_database))
        return 0

    task = MaintenanceTask(name="receiving", every=0.1, batch=1, run_once=run_once)
    upkeep = Upkeep([task], None, Scoreboard(1), Options(queues=(), beat=0.1, poll=0.05))
    turns(upkeep, lambda: len(sessions) >= 2)
    assert len(set(sessions)) == 2


def runner(**asks: str) -> tuple[TaskRunner, list[str]]:
    """A runner of tasks with these names and conditions, and the names of those that ran."""
    ran: list[str] = []

    def task(name: str, condition: str) -> MaintenanceTask:
        def run_once() -> int:
            ran.append(name)
            return 0

        return MaintenanceTask(name=name, every=60, batch=1, run_once=run_once, asks=condition)

    options = Options(queues=(), beat=0.1, poll=0.05)
    return TaskRunner([task(*named) for named in asks.items()], options), ran


def test_one_statement_asks_which_tasks_have_something_to_do() -> None:
    tasks, ran = runner(full="true", empty="false", unknown="NULL", fuller="1 = 1")
    with CaptureQueriesContext(connection) as statements:
        for _ in range(9):
            tasks.run_one()
    assert (ran, len(statements)) == (["full", "fuller"], 1)
    assert 3 < tasks.next_in() <= 60
    tasks.bring_forward("empty")  # a hint is an answer
    tasks.bring_forward("unheard")
    tasks.run_one()
    assert ran == ["full", "fuller", "empty"]


def test_a_task_with_nothing_to_do_learns_the_time_of_the_question() -> None:
    times: list[tuple[datetime, float]] = []

    def rested(now: datetime, asked_at: float) -> None:
        times.append((now, asked_at))

    def task(name: str, asks: str) -> MaintenanceTask:
        return MaintenanceTask(
            name=name, every=60, batch=1, run_once=lambda: 0, asks=asks, rested=rested
        )

    begun = time.monotonic()
    tasks = TaskRunner([task("full", "true"), task("empty", "false")], Options(queues=()))
    tasks.run_one()
    ((there, asked_at),) = times
    assert begun <= asked_at <= time.monotonic()
    assert run_sql("SELECT statement_timestamp() > %s", [there]) == [(True,)]


def test_a_sweep_is_as_frequent_as_the_setting_says_if_that_is_often(settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "SWEEP_SECONDS": 0.5}
    tasks = TaskRunner(
        [
            MaintenanceTask(name="empty", every=0.5, batch=1, run_once=lambda: 0, asks="false"),
        ],
        Options(queues=()),
    )
    tasks.run_one()
    assert tasks.next_in() <= 0.5


def test_a_minute_without_work_takes_few_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a poll each second, ten heartbeats and two looks at the listener: 1.5 a second."""
    clock = [1_000.0]
    now = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("django_jobs.worker.heartbeat.upkeep.time", now)
    scoreboard = Scoreboard(1)
    scoreboard.slots[0].note_listening(True)
    scheduler = Scheduler(lambda: Scheduling().look(), scoreboard, poll=1.0)
    tasks = TaskRunner([*maintenance_tasks(), scheduler.task], Options(queues=()))

    def pass_minute() -> None:
        until = clock[0] + 60
        while clock[0] < until:
            scheduler.look_if_due()
            tasks.run_one()
            clock[0] += min(scheduler.next_in(), tasks.next_in())

    Schedule.objects.all().delete()
    fold_runs()
    pass_minute()  # the first of each hour has more
    with CaptureQueriesContext(connection) as statements:
        pass_minute()
    assert len(statements) <= 14 + 2 * (1 + 3), [one["sql"][:80] for one in statements]


def test_a_condition_that_fails_keeps_no_task_from_its_turn() -> None:
    tasks, ran = runner(full="true", broken="1 / 0 = 1")
    with pytest.raises(DataError):
        tasks.run_one()
    for _ in range(3):
        tasks.run_one()
    assert ran == ["full", "broken"]


def test_a_task_that_always_loses_the_connection_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_jobs.worker.heartbeat.upkeep.SHORTEST_GRACE", 0.2)
    done: list[int] = []

    def lose() -> int:
        run_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        return 0

    def run_once() -> int:
        done.append(1)
        return 0

    losing = MaintenanceTask(name="losing", every=0.1, batch=1, run_once=lose)
    task = MaintenanceTask(name="counting", every=0.1, batch=1, run_once=run_once)
    upkeep = Upkeep([losing, task], None, Scoreboard(1), Options(queues=(), beat=0.1, poll=0.05))
    turns(upkeep, lambda: len(done) >= 3)


@pytest.mark.parametrize(("look", "rests"), [(fail, True), (refused, True), (lambda: 0.0, False)])
def test_a_turn_rests_at_its_end_only_if_something_failed(
    look: Callable[[], float], rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[tuple[float, ...]] = []

    def no_seconds(*between: float) -> float:
        rested.append(between)
        return 0.0

    monkeypatch.setattr("django_jobs.worker.heartbeat.upkeep.random.uniform", no_seconds)
    upkeep = Upkeep([], look, Scoreboard(1), Options(queues=(), beat=0.1, poll=0.05))
    turns(upkeep, lambda: True)
    assert rested == [(0.2, 0.5)] * rests


@pytest.mark.parametrize("hears, longest", [(False, 2.0), (True, 3_000.0)])
def test_schedules_are_looked_at_every_sweep_only_where_notifications_arrive(
    settings: Settings, hears: bool, longest: float
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "SWEEP_SECONDS": 3_000.0}
    scoreboard = Scoreboard(1)
    scoreboard.slots[0].note_listening(hears)
    scheduler = Scheduler(lambda: 3_600.0, scoreboard, poll=2.0)
    scheduler.look_if_due()
    assert longest / 2 < scheduler.next_in() <= longest
    scheduler.task.rested(timezone.now(), time.monotonic())  # the question has looked meanwhile
    assert longest / 2 < scheduler.next_in() <= (2 * longest if hears else longest)
    scheduler.hint()
    scheduler.look_if_due()
    assert scheduler.next_in() <= LINGER_SECONDS  # a hint may stand for a change that comes later
