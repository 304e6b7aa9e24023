"""What the settings of an app say that jobs do otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps

from ....conf import conf
from ....models import Queue
from ..running.job_types import job_type_of
from .finding import Finding, error, note

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
    """The queues that jobs may have."""
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
        if _is_changed(settings, name):
            yield note(name, text)
    if not settings.task_acks_on_failure_or_timeout:
        yield note(
            "task_acks_on_failure_or_timeout",
            "a time-out of a task with acks_late uses up a retry, and is final without one left; "
            "other failures are final unless the task retries",
        )
    yield from _broker(settings)
    yield from _queues(app)


def _is_changed(settings: Any, name: str) -> bool:
    return any(name in changed for changed in settings.maps[:-1])


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
