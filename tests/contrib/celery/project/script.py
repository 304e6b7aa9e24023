"""Uses each task of the project. Run by itself, it does so on Celery's own in-memory broker."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tests.contrib.celery.project import tasks


def send() -> dict[str, Any]:
    """The results of tasks that were sent, by what each shows."""
    day, key = datetime(2026, 5, 1, tzinfo=UTC), UUID("00000000-0000-4000-8000-000000000000")
    return {
        "a sum": tasks.add.delay(1, y=2),
        "a countdown": tasks.add.apply_async((1, 1), countdown=0.1),
        "any number of arguments": tasks.total.delay(1, 2, 3, discount=1),
        "a retry": tasks.fetch.delay("http://x", failures=1),
        "too many failures": tasks.fetch.delay("http://x", failures=9),
        "an autoretry": tasks.download.delay("http://x", failures=1),
        "no autoretry": tasks.download.delay("http://x", missing=True),
        "other arguments": tasks.count_down.delay(2),
        "dates and numbers": tasks.typed.delay(day, key, 1),
        "a failure": tasks.fail.delay("no"),
        "a task in time": tasks.work.delay(0),
    }


def outcomes(sent: dict[str, Any]) -> dict[str, list[Any]]:
    """The state of each, and its result or its error."""
    found = {}
    for name, result in sent.items():
        value = result.get(timeout=30, interval=0.01, propagate=False)
        found[name] = [result.state, repr(value) if isinstance(value, Exception) else value]
    return found


if __name__ == "__main__":
    from celery.contrib.testing.worker import start_worker

    from tests.contrib.celery.project import celery_app

    with start_worker(celery_app, perform_ping_check=False):
        print(json.dumps(outcomes(send())), flush=True)
        os._exit(0)  # Celery's worker takes five seconds to stop
