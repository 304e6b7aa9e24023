"""Lists what a Celery project will find different once its tasks are jobs."""
