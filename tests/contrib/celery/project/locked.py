"""A task that is queued once, and hangs."""

from __future__ import annotations

import os
import time

from celery import shared_task
from celery_once import QueueOnce

from . import celery_app

celery_app.conf.ONCE = {
    "backend": "celery_once.backends.File",
    "settings": {"location": os.environ.get("LOCKS"), "default_timeout": 3600},
}


@shared_task(base=QueueOnce, name="locked.hang", once={"graceful": True}, time_limit=0.5)
def hang(key: str) -> None:
    time.sleep(3600)


@shared_task(base=QueueOnce, name="locked.fail", once={"graceful": True})
def fail(key: str) -> None:
    raise ValueError(key)
