"""A project that uses Celery, as ``celery`` and Django's docs lay one out."""

from __future__ import annotations

from .celery import app as celery_app

__all__ = ["celery_app"]
