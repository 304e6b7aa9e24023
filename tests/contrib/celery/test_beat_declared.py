"""The entries of ``beat_schedule`` are declared schedules."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("celery")

from celery.app.routes import prepare
from celery.schedules import crontab, schedule
from celery.utils.time import LocalTimezone

from django_jobs import registry
from django_jobs.contrib.celery.beat.declared import NotASchedule, declare, schedule_of
from tests.contrib.celery.project import celery_app, tasks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("project")]


class Lunar(schedule):  # type: ignore[misc]
    """A kind of schedule that a project has made."""


def columns(when: Any = 60, task: Any = tasks.total, **entry: Any) -> dict[str, Any]:
    return schedule_of(celery_app, "nightly", {"task": task.name, "schedule": when, **entry})


def problem(when: Any = 60, **entry: Any) -> str:
    with pytest.raises(NotASchedule) as raised:
        columns(when, **entry)
    return str(raised.value)


def count(*amounts: float) -> float:
    return sum(amounts)


def test_entries_become_schedules_and_others_are_logged(
    caplog: pytest.LogCaptureFixture, configure: Callable[..., None]
) -> None:
    name = tasks.add.name
    entries = {
        "monday": {
            "task": name,
            "schedule": crontab(minute="30", hour="6", day_of_week="mon"),
            "args": (1,),
            "kwargs": {"y": 2},
            "options": {"queue": "emails"},
        },
        "often": {"task": name, "schedule": timedelta(minutes=5), "args": (1,)},
        "number": {"task": name, "schedule": 60.0, "args": (1,)},
        "moon": {"task": name, "schedule": Lunar(60), "args": (1,)},
        "gone": {"task": "gone", "schedule": 60},
    }
    configure(beat_schedule=entries)
    declare(celery_app)
    declared = registry.schedules()
    for one in ("monday", "often", "number"):
        registry.forget_schedule(one)
    assert declared["monday"]["payload"] == {"x": 1, "y": 2, "*": {"by_position": ["x"]}}
    assert (declared["monday"]["cron"], declared["monday"]["queue"]) == ("30 6 * * 1", "emails")
    assert (declared["often"]["every"], declared["number"]["every"]) == (300, 60)
    assert not {"moon", "gone"} & declared.keys()
    assert "a Lunar is neither a crontab nor an interval" in caplog.text
    assert "there is no task 'gone'" in caplog.text


@pytest.mark.parametrize(
    "given, cron",
    [
        ({"minute": 0, "hour": {1, 2}}, "0 1,2 * * *"),
        ({"minute": [0, 30]}, "0,30 * * * *"),
        ({"minute": 0, "hour": range(8, 18)}, "0 8-17 * * *"),
        ({"minute": "*/15", "hour": "22-2"}, "*/15 0-2,22,23 * * *"),
        ({"minute": 5, "hour": 4, "day_of_week": "mon-fri"}, "5 4 * * 1-5"),
        ({"minute": 5, "hour": 4, "day_of_month": (1, 15)}, "5 4 1,15 * *"),
        ({"minute": 5, "hour": 4, "day_of_month": 1, "month_of_year": "*/3"}, "5 4 1 */3 *"),
    ],
)
def test_a_crontab_has_the_values_that_celery_reads(given: dict[str, Any], cron: str) -> None:
    assert columns(crontab(**given))["cron"] == cron


def test_a_crontab_is_in_the_time_zone_of_the_app(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert columns(crontab())["timezone"] == "UTC"
    monkeypatch.setitem(vars(celery_app), "timezone", LocalTimezone())
    assert columns(crontab())["timezone"] == "Europe/Berlin"


class TestOptions:
    def test_the_queue_and_the_priority_are_those_of_the_entry(self) -> None:
        made = columns(options={"queue": "emails", "priority": 4})
        assert (made["queue"], made["priority"]) == ("emails", 4)

    def test_a_priority_means_what_it_means_to_the_broker(
        self, configure: Callable[..., None]
    ) -> None:
        configure(broker_url="redis://")
        assert columns(options={"priority": 9})["priority"] == -9

    def test_routes_are_obeyed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        routes = prepare({"shop.*": {"queue": "bulk", "priority": 3}})
        monkeypatch.setattr(celery_app.amqp.router, "routes", routes)
        assert (columns()["queue"], columns()["priority"]) == ("bulk", 3)

    def test_a_router_that_fails_refuses_the_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def route(*args: Any, **options: Any) -> Any:
            raise ConnectionError("no answer")

        monkeypatch.setattr(celery_app.amqp.router, "routes", prepare([route]))
        assert problem() == "no answer"

    @pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
    def test_those_of_the_task_are_in_its_job_type(self, declare: Callable[..., Any]) -> None:
        task = declare(count, queue="emails", priority=4, expires=30, time_limit=9)
        job_type = registry.get(task.name)
        assert (job_type.queue, job_type.priority, job_type.max_age) == ("emails", 4, 30)
        made = columns(task=task, options={"expires": 30, "time_limit": 9})
        assert (made["queue"], made["priority"]) == ("emails", 4)

    @pytest.mark.parametrize("option", ["time_limit", "soft_time_limit"])
    def test_one_that_only_a_task_can_have_is_refused(self, option: str) -> None:
        text = f"{option}: no option of a schedule; declare the task with it"
        assert problem(options={option: 30}) == text

    @pytest.mark.parametrize("seconds", [72, 0.5])
    def test_seconds_after_which_it_expires_are_in_the_payload(self, seconds: float) -> None:
        made = columns(task=tasks.add, args=[1], options={"expires": seconds})
        assert made["payload"]["*"] == {"by_position": ["x"], "expires": seconds}

    @pytest.mark.parametrize("expires", [60, datetime(2030, 1, 1, tzinfo=UTC), "2030-01-01"])
    def test_others_than_those_of_the_task_are_refused(
        self, expires: Any, declare: Callable[..., Any]
    ) -> None:
        task = declare(count, expires=30)
        text = "expires: no option of a schedule; declare the task with it"
        assert problem(task=task, options={"expires": expires}) == text
        if expires != 60:
            assert problem(options={"expires": expires}) == text

    def test_a_point_in_time_of_the_task_is_refused(self, declare: Callable[..., Any]) -> None:
        task = declare(count, expires=datetime(2030, 1, 1, tzinfo=UTC))
        assert problem(task=task).startswith("expires: no option of a schedule")

    @pytest.mark.parametrize("option", ["countdown", "headers", "task_id"])
    def test_one_of_a_single_message_is_refused(self, option: str) -> None:
        text = f"{option}: no option of a schedule; send the task from another"
        assert problem(options={option: 1}) == text

    @pytest.mark.parametrize("empty", [None, {}, 0])
    def test_an_empty_one_of_a_message_is_none(self, empty: Any) -> None:
        options = dict.fromkeys(("headers", "countdown", "eta", "task_id", "shadow"), empty)
        assert columns(options=options) == columns()

    @pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
    def test_the_default_queue_prevails_over_that_of_the_task(
        self, declare: Callable[..., Any]
    ) -> None:
        task = declare(count, queue="emails")
        assert columns(task=task, options={"queue": "celery"})["queue"] == "default"
        assert columns(options={"queue": "celery"}) == columns()

    def test_a_callback_is_refused(self) -> None:
        assert "link is not possible; use chain" in problem(options={"link": tasks.add.s(1)})


@pytest.mark.parametrize(
    "when, text",
    [
        (crontab(day_of_month="1", day_of_week="mon"), "it restricts both the day"),
        (crontab(nowfun=datetime.now), "its crontab has a nowfun"),
        (timedelta(0), "an interval is from 1 second"),
        (0.5, "an interval is from 1 second"),
        (timedelta(milliseconds=999), "an interval is from 1 second"),
        ("30", "a str is neither a crontab nor an interval"),
        (None, "a NoneType is neither a crontab nor an interval"),
    ],
)
def test_a_time_without_an_equivalent_is_refused(when: Any, text: str) -> None:
    assert text in problem(when)


@pytest.mark.parametrize(
    "entry, text",
    [
        ({"shedule": 60, "task": "x"}, "unknown key 'shedule'; did you mean 'schedule'?"),
        ({"schedule": 60, "task": "x", "option": {}}, "'option'; did you mean 'options'?"),
        ({"schedule": 60}, "it has no 'task'"),
        ({"task": "shop.total"}, "it has no 'schedule'"),
    ],
)
def test_an_entry_that_beat_does_not_take_is_refused(entry: Any, text: str) -> None:
    with pytest.raises(NotASchedule, match=re.escape(text)):
        schedule_of(celery_app, "wrong", entry)


def test_arguments_that_the_task_does_not_take_are_refused() -> None:
    assert "missing a required argument: 'x'" in problem(task=tasks.add)


def problem_of_name(name: str) -> str:
    with pytest.raises(NotASchedule) as raised:
        schedule_of(celery_app, name, {"task": "shop.total", "schedule": 60})
    return str(raised.value)


def test_a_name_that_is_too_long_is_refused() -> None:
    assert "200" in problem_of_name("n" * 201)
