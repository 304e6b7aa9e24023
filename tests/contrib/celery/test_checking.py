"""``jobimport celery --check`` lists what will be different."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import django
import pytest

pytest.importorskip("celery")

from celery import Celery, Task, signals
from celery.schedules import crontab, schedule
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection
from kombu import Queue

from django_jobs import registry
from django_jobs.contrib.celery.checking import code
from django_jobs.contrib.celery.checking.app import findings_of
from django_jobs.contrib.celery.checking.code import (
    PATTERNS,
    Level,
    findings_in_files,
    findings_in_source,
)

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
        ({}, "note task_acks_late: no acks_late: delivered at most once"),
        ({"acks_late": True}, "note t: acks_late: delivered at least once"),
        (
            {"acks_late": True, "acks_on_failure_or_timeout": False, "acks_on_timeout": False},
            "note t: it runs again after a time-out",
        ),
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


def test_what_a_setting_says_of_all_tasks_is_one_line(app: Celery) -> None:
    """A project of 44 tasks had 44 of them."""
    app.conf.task_acks_late = True
    app.task(name="t", shared=False)(noop)
    app.task(name="u", shared=False, acks_late=False)(noop)
    late = [one for one in findings_of(app) if "acks_late" in one.text]
    assert [one.where for one in late] == ["task_acks_late", "u"]
    assert [one.text.startswith("no acks_late") for one in late] == [False, True]


def test_a_base_class_for_workers_is_an_error(app: Celery) -> None:
    class Traced(Task):  # type: ignore[misc]
        Request = "mine:Request"

    app.task(name="t", shared=False, base=Traced)(noop)
    found(app, "error t: its base class changes Request")


@pytest.mark.parametrize("name", ["celeryd_init", "worker_shutting_down", "task_unknown"])
def test_a_receiver_that_is_never_called_is_an_error(app: Celery, name: str) -> None:
    def receive(**fields: Any) -> None: ...

    getattr(signals, name).connect(receive)
    assert "is never sent" in found(app, f"error signals.{name}")
    getattr(signals, name).disconnect(receive)


def test_tables_of_results_that_stay_empty_are_an_error(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app is not installed in earnest: its models and signals would stay in this process."""
    monkeypatch.setattr(apps, "is_installed", "django_celery_results".__eq__)
    assert "TaskResult" in found(app, "error django_celery_results")


def test_a_boot_step_is_an_error(app: Celery) -> None:
    app.steps["worker"].add("shop.steps:Step")
    assert "is not run" in found(app, "error app.steps['worker']: shop.steps:Step")


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
        "late": {"task": "t", "schedule": 60, "options": {"time_limit": 30}},
        "away": {"task": "t", "schedule": 60, "options": {"queue": "media"}},
    }
    assert "becomes a schedule" in found(app, "note beat_schedule 'cron'")
    found(app, "note beat_schedule 'every'")
    refused = "will not be a schedule:"
    found(app, f"error beat_schedule 'moon': {refused} a Lunar is neither")
    found(app, f"error beat_schedule 'lost': {refused} there is no task 'gone'")
    found(app, f"error beat_schedule 'args': {refused} t() -> 'None': too many")
    found(app, f"error beat_schedule 'days': {refused} it restricts both the day of the month")
    found(app, f"error beat_schedule 'late': {refused} time_limit: no option of a schedule")
    found(app, "error beat_schedule 'away': 'media' is missing")
    assert not registry.schedules().keys() & app.conf.beat_schedule.keys()


class Once(Task):  # type: ignore[misc]
    def apply_async(self, *args: Any, **options: Any) -> Any: ...


@pytest.mark.parametrize("overridden", [False, True])
@pytest.mark.parametrize("received", [False, True])
def test_what_beat_calls_and_a_schedule_does_not_is_a_note(
    app: Celery, overridden: bool, received: bool
) -> None:
    def receive(**fields: Any) -> None: ...

    app.task(name="t", shared=False, base=Once if overridden else None)(noop)
    app.conf.beat_schedule = {"every": {"task": "t", "schedule": timedelta(minutes=5)}}
    if received:
        signals.before_task_publish.connect(receive)
    notes = [one.text for one in findings_of(app) if one.where == "beat_schedule 'every'"]
    signals.before_task_publish.disconnect(receive)
    assert any("neither apply_async" in one for one in notes) is (overridden or received)


IN_A_TASK = "import os, signal\n@app.task(bind=True)\ndef send(self, key):\n    "
FOUND = [
    ("link", "add.apply_async((1,), link=other.s())"),
    ("link", "add.s(1).set(link=other.s())"),
    ("link", "self.retry(link=other.s())"),
    ("link_error", "app.send_task('shop.add', (1, 2), link_error=err.si('k'))"),
    ("link_error", "from celery import signature\nsignature('shop.add', link_error=err.si('k'))"),
    ("on_error", "chain(add.s(1, 2), add.s(1)).on_error(err.si('k')).delay()"),
    ("stamp", "add.si(1).stamp(visitor)"),
    ("stamp", "signed.stamp(monitoring_id=7)"),
    ("stamp", "add.apply_async((1,), stamped_headers=['a'])"),
    ("apply_async", "add.apply_async((1,), delay=3)"),
    ("apply_async", "current_app.send_task('add', (1,), tenant=key)"),
    ("serializer", "add.apply_async(serializer='pickle')"),
    ("self.replace", "self.replace(add.s(1))"),
    ("self.replace", IN_A_TASK + "raise self.replace(then)"),
    ("add_to_chord", "self.add_to_chord(add.s(1))"),
    ("self.request.chain", "self.request.chain = None"),
    ("self.request.chain", "task.request.callbacks += [other.s()]"),
    ("task_id", "add.s(1).set(task_id=key)"),
    ("routing_key", "add.apply_async((1,), routing_key='nowhere')"),
    ("GroupResult.save", "GroupResult.restore(id)"),
    ("GroupResult.save", "group(add.s(1)).delay().save()"),
    ("GroupResult.save", "group(add.s(1))().save()"),
    ("GroupResult.save", "sent = group(add.s(1)).apply_async()\nsent.save()"),
    ("iter_native", "result.iter_native()"),
    ("join_native", "result.join_native(timeout=1)"),
    ("on_message", "result.get(on_message=print)"),
    ("app.control", "current_app.control.inspect()"),
    ("app.control", "app.control.broadcast('pool_grow')"),
    ("app.steps", "app.steps['worker'].add(Step)"),
    ("beat_init", "from celery.signals import beat_init\n@beat_init.connect\ndef start(): ..."),
    ("beat_init", "from celery import signals as s\ns.celeryd_init.connect(start)"),
    ("beat_init", "import celery.signals\ncelery.signals.task_unknown.connect(start)"),
    ("beat_init", "from celery.signals import *\nworker_shutting_down.connect(start)"),
    ("setup_logging", "from celery.signals import setup_logging as s\n@s.connect\ndef f(): ..."),
    ("delay", "async def view(request):\n    add.delay(1)"),
    ("delay", "async def view(request):\n    if request:\n        add.apply_async((1,))"),
    ("store_result", "self.backend.store_result('id', {}, 'SUCCESS')"),
    ("celery.contrib.testing", "from celery.contrib.testing.worker import start_worker"),
    ("celery.contrib.testing", "import celery.contrib.testing.app"),
    ("celery.contrib.testing", "pytest_plugins = ('celery.contrib.pytest',)"),
    ("celery.contrib.testing", "def test_a_task(celery_worker): ..."),
    ("TaskResult", "from django_celery_results.models import TaskResult"),
    (
        "PeriodicTask",
        "from django_celery_beat.models import PeriodicTask as P\nP.objects.create(name='x')",
    ),
    ("PeriodicTask", "from django_celery_beat import models\nmodels.PeriodicTask(name='x').save()"),
    ("periodic_task_name", "self.request.periodic_task_name"),
    ("periodic_task_name", "self.request.headers.get('periodic_task_name')"),
    (
        "CELERY_BROKER_URL",
        "import redis\nredis.from_url(settings.CELERY_BROKER_URL).llen('celery')",
    ),
    (
        "CELERY_BROKER_URL",
        "from kombu import Connection\nwith Connection(url) as c: c.SimpleQueue(x)",
    ),
    ("CELERY_BROKER_URL", "with app.connection_or_acquire() as conn: conn.default_channel"),
    ("CELERY_BROKER_URL", "app.connection_for_read()"),
    ("revoke", "result.revoke(terminate=True)"),
    ("self.<name> =", IN_A_TASK + "self.key = key"),
    ("self.<name> =", "class Send(celery.Task):\n    def run(self, key):\n        self.key = key"),
    ("os.environ", IN_A_TASK + "os.environ['TENANT'] = key"),
    ("os.environ", IN_A_TASK + "os.environ.update(TENANT=key)"),
    ("os.chdir", IN_A_TASK + "os.chdir(key)"),
    ("global", IN_A_TASK + "global tenant"),
    ("signal.signal", IN_A_TASK + "signal.signal(signal.SIGALRM, print)"),
    ("signal.signal", "import asyncio\n" + IN_A_TASK + "asyncio.get_event_loop()"),
]


@pytest.mark.parametrize("row, code", FOUND)
def test_what_jobs_refuse_or_do_otherwise_is_found(app: Celery, row: str, code: str) -> None:
    line = code.count("\n") + 2
    (finding,) = findings_in_source(f"\n{code}\n", "shop/services.py", app)
    places = [f"shop/services.py:{number}" for number in (line, line - 1)]
    assert finding.where in places
    matching = [one for one in PATTERNS if one.row == row and one.level is finding.level]
    words = [one.text.replace("{}", "") for one in matching]
    assert any(finding.text.endswith(word) for word in words), finding


@pytest.mark.parametrize(
    "code",
    [
        "'a'.replace('b', 'c')",
        "self.replace('b', 'c')",
        "import copy\ncopy.replace(order)",
        "add.apply_async((1,), queue='x', countdown=3, headers={}, task_id=key, priority=1)",
        "add.apply_async((1,), **options)",
        "order.save()",
        "cache.set('key', value, timeout=3)",
        "requests.get(url, on_message_error=1)",
        "app.control.revoke(key)",
        "from celery.signals import task_prerun\n@task_prerun.connect\ndef start(): ...",
        "def view(request):\n    add.delay(1)",
        "async def view(request):\n    await sync_to_async(add.delay)(1)",
        "async def view(request):\n    def send():\n        add.delay(1)\n    await send()",
        "import os\nos.environ['TENANT'] = 'a'",
        "class View:\n    def get(self):\n        self.key = 1",
        "class Send(Task):\n    def __init__(self):\n        self.key = 1",
        "stamp = image.stamp(seal)",
        "user.links.set(queryset)",
        "from django.db import connection\nconnection.cursor()",
        "from kombu import Exchange, Queue\nQueue('media', Exchange('media'))",
    ],
)
def test_other_code_is_not(app: Celery, code: str) -> None:
    assert not list(findings_in_source(code, "shop/services.py", app))


@pytest.mark.parametrize("source", [b"def (:", b"x = '\x00'", b"\xff\xfe", b"a" + b"(" * 9_999])
def test_a_file_that_python_cannot_read_is_a_note(source: bytes) -> None:
    (finding,) = findings_in_source(source, "shop/old.py")
    assert (finding.level, finding.where) == (Level.NOTE, "shop/old.py")
    assert finding.text.startswith("was not read: ")


FOUND_ELSEWHERE = {"async def", "name", "beat_schedule"}
"""Of the rows of the page those that are found in tasks and in beat's schedule."""


def test_each_row_of_the_page_is_found_or_marked() -> None:
    page = (Path(__file__).parents[3] / "docs" / "celery.md").read_text()
    words = {pattern.row for pattern in PATTERNS} | FOUND_ELSEWHERE
    rows, seen = [], set()
    for title in ("## What is refused", "## Found in code"):
        part = page.partition(title)[2].partition("\n## ")[0]
        rows += [line for line in part.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    for row in rows:
        first = row.split(" | ")[0]
        spans = {span.partition('="')[0] for span in re.findall(r"`([^`]+)`", first)}
        spans = {re.sub(r"^get\((\w+)=\)$", r"\1", span) for span in spans}
        assert spans & words or first.startswith("| †"), row
        assert not (spans & words and first.startswith("| †")), row
        seen |= spans & words
    assert words - seen <= {"revoke"}  # of the first table
    assert {row for row, _ in FOUND} == {pattern.row for pattern in PATTERNS}


SERVICES = """
from shop.tasks import add
def pay(): add.apply_async((1, 2), link_error=add.si(1))
"""
VIEWS = """
from shop.tasks import add
async def view(request): add.delay(1)
"""


RUNS_ONCE = """
from django.core.checks import register
runs = [[]]
@register()
def once(**more): return runs.pop()
"""
"""Celery runs Django's checks when it imports tasks, which manage.py has done."""


def test_all_modules_of_the_projects_apps_are_read(tmp_path: Path) -> None:
    files = {
        "mysite/__init__.py": "from .celery import app",
        "mysite/celery.py": "from celery import Celery\napp = Celery('mysite', broker='memory://')\n"
        "app.autodiscover_tasks(['shop'])\napp.steps['worker'].add(object)",
        "mysite/settings.py": "from tests.contrib.celery.beat_settings import *\n"
        "INSTALLED_APPS = ['django_jobs', 'django.contrib.contenttypes', 'shop']",
        "shop/__init__.py": RUNS_ONCE,
        "shop/tasks.py": "from celery import shared_task\n@shared_task\ndef add(x, y): ...",
        "shop/services.py": SERVICES,
        "shop/views.py": VIEWS,
        "shop/broken.py": "def (:",
        "shop/management/commands/send.py": "x.iter_native()",
        "shop/.venv/lib/site-packages/other.py": "x.iter_native()",
        "shop/env/pyvenv.cfg": "",
        "shop/env/lib/other.py": "x.iter_native()",
        "elsewhere/views.py": "x.iter_native()",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def check() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "django", "jobimport", "celery", "--check"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}",
                "DJANGO_SETTINGS_MODULE": "mysite.settings",
                "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
            },
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    code, printed = check()
    assert code == 1, printed
    assert "code: 9 files" in printed, printed
    assert "error mysite/celery.py:4: boot steps are not made" in printed
    assert "error shop/services.py:3: link_error= is not possible" in printed
    assert "error shop/views.py:3: a task is not sent in async code" in printed
    assert "error shop/management/commands/send.py:1: .iter_native() is not possible" in printed
    assert "note  shop/broken.py: was not read: invalid syntax" in printed
    assert "other.py" not in printed
    assert "elsewhere" not in printed
    for name in ("mysite/celery.py", "shop/services.py", "shop/views.py"):
        (tmp_path / name).write_text("\n".join((tmp_path / name).read_text().split("\n")[:3]))
    (tmp_path / "shop/services.py").write_text("")
    (tmp_path / "shop/views.py").write_text("")
    (tmp_path / "shop/management/commands/send.py").unlink()
    code, printed = check()
    assert code == 0, printed  # notes alone
    assert "note  shop/broken.py" in printed


def test_five_hundred_files_are_read_without_a_false_alarm(app: Celery) -> None:
    """Django's own, which took 1.5 s."""
    files = sorted(Path(django.__path__[0]).rglob("*.py"))[:500]
    assert not list(findings_in_files(files, app))


@pytest.mark.usefixtures("project")
def test_the_command_exits_with_1_for_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the settings; the code of these tests, which it would read, sends in all ways."""
    monkeypatch.setattr(code, "files_of", lambda apps: [])
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
    with pytest.raises(CommandError, match="let the workers of Celery empty the queues"):
        call_command("jobimport", "celery")
    with pytest.raises(CommandError, match="--app nowhere:app"):
        call_command("jobimport", "celery", "--check", "--app", "nowhere:app")
