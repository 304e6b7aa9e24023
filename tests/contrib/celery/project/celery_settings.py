"""Of the project's Celery app. Its entry of beat, which each worker would send once a second, is
there for the tests that ask for it."""

from __future__ import annotations

import os

CELERY_BROKER_URL = "memory://"
CELERY_RESULT_BACKEND = "cache+memory://"
CELERY_BROKER_TRANSPORT_OPTIONS = {"polling_interval": 0.01}
EVERY_SECOND = {
    "every second": {
        "task": "tests.contrib.celery.project.tasks.tick",
        "schedule": 1,
        "kwargs": {"label": "beat"},
    },
}
CELERY_BEAT_SCHEDULE = EVERY_SECOND if "PROJECT_BEAT" in os.environ else {}
