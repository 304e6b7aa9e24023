"""A project with tasks, and a list of situations: what it sends, and what comes of it. Celery runs
it with ``TASK_CLS=celery.contrib.django.task:DjangoTask``, and ``jobworker`` with the one line."""

from __future__ import annotations

from .celery import app as celery_app

__all__ = ["celery_app"]
