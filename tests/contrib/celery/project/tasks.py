"""The tasks of the project. None of them knows of django_jobs."""

from __future__ import annotations

import os
import time
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from celery import Task, shared_task
from celery.contrib.abortable import AbortableTask
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from django.db import transaction


def write_effect(text: str) -> None:
    """What a task does to the world: a line of a file."""
    with open(os.environ.get("PROJECT_EFFECTS", os.devnull), "a") as file:
        file.write(f"{text}\n")


class Audited(Task):  # type: ignore[misc]
    """A base class of the project, with hooks."""

    seen: list[Any]

    def __init__(self) -> None:
        self.seen = []

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self.seen.append(("success", retval, args, kwargs))
        write_effect(f"success {retval} {args} {kwargs}")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.seen.append(("retry", str(exc), args, kwargs))
        write_effect(f"retry {exc} {args} {kwargs}")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.seen.append(("failure", str(exc), args, kwargs))
        write_effect(f"failure {exc} {args} {kwargs}")


@shared_task
def add(x: float, y: float = 0) -> float:
    return x + y


@shared_task(name="shop.total")
def total(*amounts: float, discount: float = 0) -> float:
    return sum(amounts) - discount


@shared_task(bind=True)
def describe(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What the task sees of its message."""
    request = self.request
    return {
        "id": request.id,
        "args": list(request.args),
        "kwargs": request.kwargs,
        "retries": request.retries,
        "called_directly": request.called_directly,
        "is_eager": request.is_eager,
        "headers": request.headers,
    }


@shared_task(bind=True, max_retries=2, default_retry_delay=0)
def fetch(self: Any, url: str, failures: int) -> list[Any]:
    """Succeeds after so many failures."""
    if self.request.retries < failures:
        try:
            raise ConnectionError(f"no answer from {url}")
        except ConnectionError as error:
            raise self.retry(exc=error, countdown=0) from error
    return [url, self.request.retries]


@shared_task(
    bind=True,
    base=Audited,
    autoretry_for=(OSError,),
    dont_autoretry_for=(FileNotFoundError,),
    retry_backoff=1,
    retry_backoff_max=2,
    retry_jitter=False,
    max_retries=2,
    acks_late=True,
)
def download(self: Any, url: str, failures: int = 0, missing: bool = False) -> list[Any]:
    if missing:
        raise FileNotFoundError(url)
    if self.request.retries < failures:
        raise ConnectionError(f"no answer from {url}")
    return [url, self.request.retries]


@shared_task(bind=True, max_retries=None)
def count_down(self: Any, number: int) -> str:
    """Asks for a retry with other arguments, until it is done."""
    if number:
        raise self.retry(args=[number - 1], countdown=0)
    return f"done after {self.request.retries}"


@shared_task
def typed(day: datetime, key: UUID, amount: Decimal) -> list[Any]:
    return [day.year, key.version, amount + 1]


@shared_task
def fail(message: str) -> None:
    raise ValueError(message)


@shared_task(bind=True, acks_late=True)
def decide(self: Any, how: str) -> None:
    write_effect(f"decide {how}")
    if how == "ignore":
        raise Ignore("not needed")
    raise Reject(
        "malformed", requeue=how == "requeue" and not self.request.delivery_info.get("redelivered")
    )


@shared_task(soft_time_limit=0.2, time_limit=30, ignore_result=False)
def work(seconds: float) -> str:
    """Cleans up when its time is over."""
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        return "cleaned up"
    return "done"


@shared_task
def collect(values: Any, label: str = "sum") -> list[Any]:
    return [label, values]


@shared_task
def tick(label: str) -> None:
    """What beat sends."""
    write_effect(f"tick of {label}")


@shared_task(bind=True, base=AbortableTask)
def export(self: Any, seconds: float) -> str:
    """Says in a transaction that it has begun, and ends when it is aborted."""
    end = time.monotonic() + seconds
    with transaction.atomic():
        self.update_state(state="PROGRESS", meta=1)
        while time.monotonic() < end:
            if self.is_aborted():
                return "aborted"
            time.sleep(0.01)
    return "to the end"
