"""What an app asks for that jobs do otherwise: in its settings, tasks, worker, beat and code."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from celery import Task, _state, signals
from celery.utils.imports import symbol_by_name
from django.apps import apps
from django.core.management.base import CommandError

from ....api.validation import LONGEST_NAME
from ....conf import conf
from ....models import Queue
from ..beat.declared import NotASchedule, schedule_of
from ..running.job_types import is_acked_on_timeout, job_type_of
from ..task import import_without_checks
from .code import NEVER_SENT, OF_LOGGING, Finding, Level, error, findings_in_files, note

JSON = "json"
NOTES = {
    "result_backend": "is not used: results are in the rows of jobs, and other readers of the "
    "backend see none",
    "result_expires": "is not used: the retention of a queue says how long results are kept",
    "worker_send_task_events": "no events are sent, so Flower shows nothing; the admin and "
    "jobstatus do",
    "task_send_sent_event": "no events are sent",
    "task_always_eager": "stays in force: nothing is enqueued until it is removed",
    "task_reject_on_worker_lost": "a task with acks_late runs again after a crash, at most three "
    "times in a row",
    "task_inherit_parent_priority": "is not used: a job has the priority that it is given",
    "worker_prefetch_multiplier": "is not used: a worker takes what its threads can start soon",
    "worker_concurrency": "is not used: jobworker --prefork",
    "worker_max_tasks_per_child": "is not used: jobworker --max-jobs, or isolated job types",
    "worker_max_memory_per_child": "is not used: jobworker --max-rss",
    "worker_hijack_root_logger": "is not used: the project's LOGGING is in force",
}
"""What there is to say of a setting that differs from Celery's default."""


MISSING = '{!r} is missing in DJANGO_JOBS["QUEUES"]'


def known_queues() -> set[str]:
    return set(Queue.objects.names()) | conf().queues.keys()


def findings_in_settings(app: Any) -> Iterator[Finding]:
    """Settings that are not used, mean something else, or cannot be kept."""
    settings = app.conf
    for name in ("task_serializer", "result_serializer"):
        if settings[name] != JSON:
            yield error(name, f"is {settings[name]}: a payload and a result are JSON")
    if others := sorted(set(settings.accept_content) - {JSON, "application/json"}):
        yield note("accept_content", f"{', '.join(others)} will not be read: a payload is JSON")
    if apps.is_installed("django_celery_results"):
        yield error(
            "django_celery_results",
            "TaskResult and GroupResult stay empty: read AsyncResult(id), or the model Job",
        )
    for name, text in NOTES.items():
        if any(name in changed for changed in settings.maps[:-1]):
            yield note(name, text)
    if not settings.task_acks_on_failure_or_timeout:
        yield note(
            "task_acks_on_failure_or_timeout",
            "a time-out of a task with acks_late uses up a retry, and is final without one left; "
            "other failures are final unless the task retries",
        )
    yield from _broker(settings)
    yield from _queues(app)


def _broker(settings: Any) -> Iterator[Finding]:
    broker, options = str(settings.broker_url or ""), settings.broker_transport_options or {}
    if "visibility_timeout" in options or broker.startswith(("redis", "sentinel", "sqs")):
        yield note(
            "visibility_timeout",
            "there is none: a task may run, or wait for its ETA, for as long as it takes, and is "
            "delivered again only if its worker is lost",
        )
    if broker.startswith(("redis", "sentinel")):
        yield note(
            "broker_url",
            "as with Redis, priority 0 starts first: 9 becomes -9. Keep the setting, because "
            "priorities are read by it",
        )


def _queues(app: Any) -> Iterator[Finding]:
    known, default = known_queues(), app.conf.task_default_queue
    wanted = {queue.name for queue in app.conf.task_queues or ()} | set(_routed_to(app.conf))
    wanted |= {job_type_of(app, name).queue for name in app.tasks}
    for name in sorted(wanted - known - {default}):
        yield error("queues", MISSING.format(name))
    if default not in known:
        yield note("task_default_queue", f"{default!r} becomes 'default'")
    for router in _routers(app.conf):
        if not isinstance(router, Mapping | list | tuple):
            yield note("task_routes", f"{router!r} is called; its queues have to exist")


def _routers(settings: Any) -> list[Any]:
    routes = settings.task_routes or ()
    return list(routes) if isinstance(routes, list | tuple) else [routes]


def _routed_to(settings: Any) -> Iterator[str]:
    for router in _routers(settings):
        routes = router.values() if isinstance(router, Mapping) else ()
        for route in routes:
            queue = route.get("queue") if isinstance(route, Mapping) else route
            if queue is not None:
                yield str(getattr(queue, "name", queue))


def findings_in_beat(app: Any) -> Iterator[Finding]:
    """Entries of ``beat_schedule`` that no schedule can express, and what to do with the others."""
    for name, entry in sorted((app.conf.beat_schedule or {}).items()):
        where = f"beat_schedule {name!r}"
        try:
            columns = schedule_of(app, name, entry)
        except NotASchedule as problem:
            yield error(where, f"will not be a schedule: {problem}")
            continue
        if columns["queue"] and columns["queue"] not in known_queues():
            yield error(where, MISSING.format(columns["queue"]))
            continue
        yield note(where, "becomes a schedule with the next migrate; beat is not needed")
        changed = type(app.tasks[entry["task"]]).apply_async is not Task.apply_async
        if changed or signals.before_task_publish.receivers:
            yield note(
                where, "neither apply_async of a base class nor before_task_publish is called"
            )
    scheduler = str(app.conf.beat_scheduler)
    if "django_celery_beat" in scheduler or apps.is_installed("django_celery_beat"):
        yield note(
            "beat_scheduler", "`manage.py jobimport celery` has to take the tables of beat over"
        )
    elif "PersistentScheduler" not in scheduler:
        yield error("beat_scheduler", f"{scheduler} is not used; declare its schedules")


OF_A_WORKER = ("Request", "Strategy", "start_strategy")
"""Attributes of a task that only a worker of Celery uses."""
DELIVERY = {
    True: "acks_late: delivered at least once, again after a crash, at most three times in a row",
    False: "no acks_late: delivered at most once. A lost or interrupted task is a dead letter, "
    "which may be replayed",
}


def findings_in_tasks(app: Any) -> Iterator[Finding]:
    """Options of each task that mean something else, or cannot be kept."""
    yield note("task_acks_late", DELIVERY[bool(app.conf.task_acks_late)])
    for name, task in sorted(app.tasks.items()):
        if not name.startswith("celery."):
            yield from _of(name, task)


def _of(name: str, task: Any) -> Iterator[Finding]:
    if task.serializer != "json":
        yield error(name, f"serializer={task.serializer!r}: a payload is JSON")
    if inspect.iscoroutinefunction(task.run):
        yield error(name, "is async: use asgiref.sync.async_to_sync, or declare it with @job")
    if len(name) > LONGEST_NAME:
        yield error(name, f"its name is longer than {LONGEST_NAME} characters")
    for attribute in OF_A_WORKER:
        if getattr(type(task), attribute) != getattr(Task, attribute):
            yield error(name, f"its base class changes {attribute}, which no worker calls")
    if bool(task.acks_late) != bool(task.app.conf.task_acks_late):
        yield note(name, DELIVERY[bool(task.acks_late)])
    if task.acks_late and not is_acked_on_timeout(task):
        yield note(name, "it runs again after a time-out while retries are left")
    if task.time_limit:
        text = "SystemExit is raised in it; a second later its process is killed, with all threads"
        yield note(name, f"time_limit={task.time_limit:g}: {text}")
    if task.soft_time_limit:
        text = (
            "raised at the next step of Python code, with --prefork also during a sleep or a wait"
        )
        yield note(name, f"soft_time_limit={task.soft_time_limit:g}: {text}")
    if task.rate_limit:
        yield note(name, f"rate_limit={task.rate_limit!r}: of all workers together")


def findings_in_worker(app: Any) -> Iterator[Finding]:
    """What was added to Celery's worker, and is not called without it."""
    for name in NEVER_SENT:
        if getattr(signals, name).receivers:
            yield error(f"signals.{name}", "is never sent: use worker_init or worker_process_init")
    for name in OF_LOGGING:
        if getattr(signals, name).receivers:
            yield note(f"signals.{name}", "is never sent: the project's LOGGING is in force")
    for kind, steps in app.steps.items():
        for step in sorted(map(str, steps)):
            yield error(f"app.steps[{kind!r}]", f"{step} is not run: use worker_init")


def apps_of(path: str | None) -> list[Any]:
    """The app of this path, or else all that were imported. Their tasks are imported."""
    if path is not None:
        try:
            apps = [symbol_by_name(path)]
        except (ImportError, AttributeError) as error:
            raise CommandError(f"--app {path}: {error}") from None
    else:
        apps = [app for app in _state._get_active_apps() if app.main not in (None, "default")]
    if not apps:
        raise CommandError("no Celery app was imported; name it, as in --app proj.celery:app")
    for app in apps:
        import_without_checks(app)
        app.loader.import_default_modules()
        app.finalize(auto=True)
    return apps


def findings_of(app: Any) -> Iterator[Finding]:
    """The findings in settings, tasks and beat's schedule of an app, errors of each kind first."""
    for find in (findings_in_settings, findings_in_worker, findings_in_tasks, findings_in_beat):
        yield from _sorted(find(app))


def findings_in_code(files: Iterable[Path], app: Any) -> Iterator[Finding]:
    """The findings in the code of the project, the errors first."""
    yield from _sorted(findings_in_files(files, app))


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (one.level is not Level.ERROR, _place(one.where)))


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return (path, int(line)) if line.isdigit() else (where, 0)
