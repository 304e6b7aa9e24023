"""Reads django-celery-beat's tables and makes schedules of them."""
