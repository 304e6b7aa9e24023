"""The demo's app."""

from __future__ import annotations

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """Real work for the queue: an index of Python sources, and webhooks."""

    name = "testproject.demo"
    label = "demo"
    default_auto_field = "django.db.models.BigAutoField"
