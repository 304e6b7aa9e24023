"""The project's Celery app. Messages and results are files of a folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from celery import Celery
from kombu.transport import filesystem
from kombu.utils.json import dumps

FOLDER = Path(os.environ.get("DIFFERENTIAL_FOLDER", os.devnull))
MESSAGES, PROCESSED, CONTROL, RESULTS = (
    FOLDER / name for name in ("messages", "processed", "control", "results")
)

app = Celery(
    "differential",
    task_cls=os.environ.get("TASK_CLS", "django_jobs.contrib.celery:JobsTask"),
)
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": str(MESSAGES),
        "data_folder_out": str(MESSAGES),
        "processed_folder": str(PROCESSED),
        "store_processed": True,
        "control_folder": str(CONTROL),
        "polling_interval": 0.02,
    },
    broker_connection_retry_on_startup=True,
    result_backend=f"file://{RESULTS}",
    task_default_queue="default",
    result_extended=True,
    result_chord_retry_interval=0.3,
    worker_prefetch_multiplier=1000,
    task_routes={"tests.contrib.celery.differential.tasks.routed": {"queue": "emails"}},
)
app.autodiscover_tasks(["tests.contrib.celery.differential"])


def put(self: Any, queue: str, payload: Any, **more: Any) -> None:
    """Rename a message that was written: a reader may see that of kombu before its text."""
    name = f"{time.monotonic_ns()}_{uuid4()}.{queue}.msg"
    half = PROCESSED / f"{name}.half"
    half.write_text(dumps(payload))
    half.rename(MESSAGES / name)


filesystem.Channel._put = put
