"""Jobs over HTTP, for whoever asks."""

from __future__ import annotations

from typing import Any

from django.urls import include, path

urlpatterns = [path("jobs/", include("django_jobs.http.urls"))]


def may(*asked: Any) -> bool:
    """Nobody else is here."""
    return True
