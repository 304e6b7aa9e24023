"""Enqueues what a Celery app sends."""
