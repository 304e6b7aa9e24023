"""Of the project's Celery app."""

CELERY_BROKER_URL = "memory://"
CELERY_RESULT_BACKEND = "cache+memory://"
CELERY_BROKER_TRANSPORT_OPTIONS = {"polling_interval": 0.01}
CELERY_BEAT_SCHEDULE = {
    "every second": {
        "task": "tests.contrib.celery.project.tasks.tick",
        "schedule": 1,
        "kwargs": {"label": "beat"},
    },
}
