"""The project's Celery app, moved by the one line: ``TASK_CLS=celery.app.task:Task`` moves it
back."""

from __future__ import annotations

import os

from celery import Celery

app = Celery(
    "project",
    task_cls=os.environ.get("TASK_CLS", "django_jobs.contrib.celery:JobsTask"),
    namespace="CELERY",
)
app.config_from_object("tests.contrib.celery.project.celery_settings")
app.autodiscover_tasks(["tests.contrib.celery.project"])
