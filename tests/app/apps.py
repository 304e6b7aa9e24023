"""An app with handlers and tables for the tests."""

from __future__ import annotations

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """Handlers that the tests enqueue."""

    name = "tests.app"
    label = "app"
    default_auto_field = "django.db.models.BigAutoField"
