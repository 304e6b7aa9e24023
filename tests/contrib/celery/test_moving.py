"""``jobimport celery --check`` lists what will be different."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import Celery, Task
from celery.schedules import crontab, schedule
from django.core.management import CommandError, call_command
from kombu import Queue

from django_jobs import registry
from django_jobs.contrib.celery.moving.code import findings_in_source
from django_jobs.contrib.celery.moving.findings import findings_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app that was not moved yet."""
    made = Celery("before", set_as_current=False, broker="redis://", backend="rpc://")
    made.conf.imports = ()
    yield made
    made.close()


def noop() -> None: ...


class Lunar(schedule):  # type: ignore[misc]
    """A kind of schedule that a project has made."""


def lines(app: Celery) -> set[str]:
    app.finalize()
    return {f"{one.level} {one.where}: {one.text}" for one in findings_of(app)}


def found(app: Celery, start: str) -> str:
    matching = [line for line in lines(app) if line.startswith(start)]
    assert len(matching) == 1, (start, lines(app))
    return matching[0]


@pytest.mark.parametrize(
    "setting, value, line",
    [
        ("task_serializer", "pickle", "error task_serializer: is pickle"),
        ("accept_content", ["json", "pickle"], "note accept_content: pickle will not be read"),
        ("result_expires", 60, "note result_expires: is not used"),
        ("worker_send_task_events", True, "note worker_send_task_events: no events"),
        ("broker_url", "redis://", "note visibility_timeout: there is none"),
        ("broker_url", "redis://", "note broker_url: as with Redis, priority 0 starts first"),
        ("result_backend", "rpc://", "note result_backend: is not used"),
        ("task_queues", [Queue("media")], "error queues: 'media' is missing"),
        ("task_routes", {"feed.*": {"queue": "feeds"}}, "error queues: 'feeds' is missing"),
        ("task_routes", {"feed.*": "web"}, "error queues: 'web' is missing"),
        ("task_routes", [print], "note task_routes: <built-in function print> is called"),
        ("task_default_queue", "main", "note task_default_queue: 'main' becomes 'default'"),
        ("beat_scheduler", "django_celery_beat.schedulers:DatabaseScheduler", "note beat_sched"),
        ("beat_scheduler", "mine:Scheduler", "error beat_scheduler: mine:Scheduler is not used"),
    ],
)
def test_a_setting_is_listed(app: Celery, setting: str, value: Any, line: str) -> None:
    setattr(app.conf, setting, value)
    found(app, line)


def test_what_a_time_out_becomes_is_listed(app: Celery) -> None:
    app.conf.task_acks_on_failure_or_timeout = False
    assert found(app, "note task_acks_on_failure_or_timeout") == (
        "note task_acks_on_failure_or_timeout: a time-out of a task with acks_late uses up a "
        "retry, and is final without one left; other failures are final unless the task retries"
    )


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
@pytest.mark.parametrize(
    "options, line",
    [
        ({}, "note t: no acks_late: delivered at most once"),
        ({"acks_late": True}, "note t: acks_late: delivered at least once"),
        ({"serializer": "pickle"}, "error t: serializer='pickle'"),
        ({"time_limit": 60}, "note t: time_limit=60"),
        ({"soft_time_limit": 60}, "note t: soft_time_limit=60"),
        ({"rate_limit": "5/m"}, "note t: rate_limit='5/m'"),
        ({"queue": "media"}, "error queues: 'media' is missing"),
    ],
)
def test_an_option_of_a_task_is_listed(app: Celery, options: dict[str, Any], line: str) -> None:
    app.task(name="t", shared=False, **options)(noop)
    found(app, line)


def test_a_base_class_for_workers_is_an_error(app: Celery) -> None:
    class Traced(Task):  # type: ignore[misc]
        Request = "mine:Request"

    app.task(name="t", shared=False, base=Traced)(noop)
    found(app, "error t: its base class changes Request")


def test_an_async_task_is_an_error(app: Celery) -> None:
    async def run() -> None: ...

    app.task(name="t", shared=False)(run)
    found(app, "error t: is async")


def test_each_entry_of_beat_is_listed(app: Celery) -> None:
    app.task(name="t", shared=False)(noop)
    app.conf.beat_schedule = {
        "cron": {"task": "t", "schedule": crontab(minute="0")},
        "every": {"task": "t", "schedule": timedelta(minutes=5)},
        "moon": {"task": "t", "schedule": Lunar(60)},
        "lost": {"task": "gone", "schedule": 60},
        "args": {"task": "t", "schedule": 60, "args": (1,)},
        "days": {"task": "t", "schedule": crontab(day_of_month=1, day_of_week=1)},
        "late": {"task": "t", "schedule": 60, "options": {"expires": 30}},
        "away": {"task": "t", "schedule": 60, "options": {"queue": "media"}},
    }
    assert "becomes a schedule" in found(app, "note beat_schedule 'cron'")
    found(app, "note beat_schedule 'every'")
    refused = "will not be a schedule:"
    found(app, f"error beat_schedule 'moon': {refused} a Lunar is neither")
    found(app, f"error beat_schedule 'lost': {refused} there is no task 'gone'")
    found(app, f"error beat_schedule 'args': {refused} t() -> 'None': too many")
    found(app, f"error beat_schedule 'days': {refused} it restricts both the day of the month")
    found(app, f"error beat_schedule 'late': {refused} expires: no option of a schedule")
    found(app, "error beat_schedule 'away': 'media' is missing")
    assert not registry.schedules().keys() & app.conf.beat_schedule.keys()


@pytest.mark.parametrize(
    "code, text",
    [
        ("add.apply_async((1,), link=other.s())", "link= is not possible: use chain"),
        ("add.s(1).on_error(other.s())", ".on_error() is not possible"),
        ("self.replace(add.s(1))", "self.replace() is not possible: use current_run()"),
        ("current_app.control.inspect()", "app.control.inspect() asks workers"),
        ("add.apply_async(serializer='pickle')", "serializer='pickle': a payload is JSON"),
        ("GroupResult.restore(id)", ".restore() of a GroupResult is not possible: keep the ids"),
        ("group(add.s(1)).delay().save()", ".save() of a GroupResult is not possible"),
        ("result.iter_native()", ".iter_native() is not possible: use join() or get()"),
        ("result.revoke(terminate=True)", "revoke(terminate=) stops the task by force"),
    ],
)
def test_a_call_that_is_refused_is_found(code: str, text: str) -> None:
    (finding,) = findings_in_source(f"\n{code}\n", "proj.tasks")
    assert finding.where == "proj.tasks:2"
    assert finding.text.startswith(text)


@pytest.mark.parametrize(
    "code", ["'a'.replace('b', 'c')", "add.apply_async((1,), queue='x')", "order.save()"]
)
def test_other_calls_are_not(code: str) -> None:
    assert not list(findings_in_source(code, "proj.tasks"))


@pytest.mark.usefixtures("project")
def test_the_command_exits_with_1_for_an_error() -> None:
    out = StringIO()
    path = "tests.contrib.celery.project.celery:app"
    call_command("jobimport", "celery", "--check", "--app", path, stdout=out)
    assert "project: 13 tasks" in out.getvalue()
    assert out.getvalue().endswith(" notes.\n")
    from tests.contrib.celery.project import celery_app

    celery_app.conf.task_serializer = "pickle"
    with pytest.raises(CommandError, match="1 thing will not work"):
        call_command("jobimport", "celery", "--check", "--app", path, stdout=out)
    celery_app.conf.task_serializer = "json"


def test_messages_of_a_broker_are_not_imported() -> None:
    with pytest.raises(CommandError, match="let the workers of Celery empty its queues"):
        call_command("jobimport", "celery")
    with pytest.raises(CommandError, match="--app nowhere:app"):
        call_command("jobimport", "celery", "--check", "--app", "nowhere:app")
