"""Of the project's Celery app."""

CELERY_BROKER_URL = "memory://"
CELERY_RESULT_BACKEND = "cache+memory://"
CELERY_BROKER_TRANSPORT_OPTIONS = {"polling_interval": 0.01}
