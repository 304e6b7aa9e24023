"""What a project writes down of Celery's signals and hooks, and tasks that end in hard ways."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

from celery import Task, shared_task, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from django_jobs.contrib.celery.task import find_tasks

from .tasks import write_effect

WORKER = (
    *("worker_init", "worker_ready", "worker_process_init"),
    *("worker_process_shutdown", "worker_shutdown"),
)
TASK = (
    *("task_received", "task_prerun", "task_postrun", "task_success"),
    *("task_failure", "task_retry", "task_revoked"),
)


def tell(name: str, sender: Any = None, **fields: Any) -> None:
    """Write a line of what was sent."""
    if name in WORKER:
        hostname = getattr(sender, "hostname", "").partition("@")[0]
        write_effect(f"{name} {hostname}".strip())
        return
    request = fields.get("request") or getattr(sender, "request", None)
    if not str(getattr(sender, "name", "told.")).startswith("told."):
        return  # a schedule of the project runs each second
    task = sender if isinstance(sender, Task) else None
    told = {
        "task": request.task_name if task is None else task.name,
        "id": fields.get("task_id") or request.id,
        "exception": type(fields["exception"]).__name__ if "exception" in fields else None,
        "ended": [name for name in ("terminated", "expired") if fields.get(name)] or None,
    }
    write_effect(f"{name} " + " ".join(str(value) for value in told.values() if value))


RECEIVERS = {name: partial(tell, name) for name in (*WORKER, *TASK)}
"""Signals keep weak references."""


def connect() -> None:
    """In the processes of a worker, and not in that of the tests."""
    find_tasks()
    for name, receiver in RECEIVERS.items():
        getattr(signals, name).connect(receiver)


class Told(Task):  # type: ignore[misc]
    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        write_effect(f"on_failure {type(exc).__name__} {task_id} {list(args)} {kwargs}")

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        write_effect(f"on_success {task_id}")

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        write_effect(f"after_return {status} {task_id}")


@shared_task(base=Told, time_limit=0.5, name="told.loop", autoretry_for=(Exception,))
def loop(key: str, *, eager: bool = True) -> None:
    """Swallows what it can."""
    while eager:
        try:
            time.sleep(0.01)
        except Exception:
            write_effect("an exception in the task")


@shared_task(base=Told, time_limit=0.5, name="told.deaf", acks_late=True)
def deaf(key: str) -> None:
    time.sleep(3600)


@shared_task(base=Told, name="told.soft", soft_time_limit=0.3)
def soft(key: str) -> str:
    try:
        time.sleep(3600)
    except SoftTimeLimitExceeded:
        return f"cleaned up {key}"
    return "slept"


@shared_task(base=Told, name="told.die")
def die(key: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task(base=Told, name="told.reject")
def reject(key: str) -> None:
    raise Reject("malformed", requeue=False)


@shared_task(base=Told, name="told.ignore")
def ignore(key: str) -> None:
    raise Ignore("not needed")


@shared_task(base=Told, name="told.fail", throws=(LookupError,))
def fail(key: str) -> None:
    raise {"expected": LookupError, "bug": ValueError}[key]("no")


@shared_task(base=Told, name="told.wait")
def wait(key: str) -> None:
    write_effect(f"waits {key}")
    while True:
        time.sleep(0.01)


@shared_task(name="told.noop")
def noop(key: str) -> None: ...


TASKS = (noop, soft, loop, deaf, die, reject, ignore, fail, wait)
