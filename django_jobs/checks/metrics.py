"""The system check of the URLs of the metrics: W006."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register
from django.urls import URLPattern, URLResolver, get_resolver

from ..conf import conf
from .settings import TAG, check_settings

URLS = "django_jobs.metrics.urls"


@register(TAG, Tags.urls)
def check_metrics_token(**kwargs: Any) -> list[CheckMessage]:
    """Check that the metrics have a token if the project includes their URLs."""
    if not getattr(settings, "ROOT_URLCONF", None) or not _included(get_resolver().url_patterns):
        return []
    if any(message.is_serious() for message in check_settings()) or conf().metrics_token:
        return []
    text = f"{URLS} is included, and DJANGO_JOBS has no METRICS_TOKEN: all requests are refused."
    hint = "Set METRICS_TOKEN to a long random text, and let Prometheus send it."
    return [Warning(text, hint=hint, id="django_jobs.W006")]


def _included(patterns: list[URLPattern | URLResolver]) -> bool:
    resolvers = [one for one in patterns if isinstance(one, URLResolver)]
    return any(
        getattr(one.urlconf_name, "__name__", one.urlconf_name) == URLS
        or _included(one.url_patterns)
        for one in resolvers
    )
