"""The soak's own app."""

from __future__ import annotations

from django.apps import AppConfig


class SoakConfig(AppConfig):
    """Handlers only."""

    name = "tests.soak"
    label = "soak"
