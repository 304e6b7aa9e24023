"""Of the process that runs the tests of packages with Celery tasks."""

from __future__ import annotations

from tests.contrib.celery.project.settings import *  # noqa: F403
from tests.contrib.celery.project.settings import DJANGO_JOBS, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "djcelery_email", "user_tasks"]
DJANGO_JOBS = {**DJANGO_JOBS, "QUEUES": {**DJANGO_JOBS["QUEUES"], "django_email": {}}}

# As in the settings of the package's tests. Those are eager, and then Celery ignores no result.
CELERY_EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
CELERY_EMAIL_TASK_CONFIG = {
    "queue": "django_email",
    "delivery_mode": 1,
    "rate_limit": "50/m",
    "ignore_result": False,
}
