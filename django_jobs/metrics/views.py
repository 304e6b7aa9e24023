"""The page that Prometheus scrapes."""

from __future__ import annotations

import hmac

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ..conf import conf
from ..models.database import DATABASE_ERRORS, migration_problem
from .exposition import render
from .gauges import NoMetrics


@never_cache
@require_safe
@transaction.non_atomic_requests
def metrics(request: HttpRequest) -> HttpResponse:
    """All metrics, for those who send ``METRICS_TOKEN``. Without that setting they are served with
    ``DEBUG`` only."""
    token = conf().metrics_token
    if token and not _sends(request, token):
        refused = _text("Send the header Authorization: Bearer, with METRICS_TOKEN.", 401)
        refused["WWW-Authenticate"] = "Bearer"
        return refused
    if not token and not settings.DEBUG:
        return _text('DJANGO_JOBS["METRICS_TOKEN"] is not set.', 403)
    try:
        content_type, body = render(request.headers.get("Accept", ""))
    except (NoMetrics, ImproperlyConfigured) as error:
        return _text(str(error), 503)
    except DATABASE_ERRORS as error:
        problem = migration_problem(error) or f"{type(error).__name__} of the jobs' database"
        return _text(f"No metrics: {problem}.", 503)
    return HttpResponse(body, content_type=content_type)


def _sends(request: HttpRequest, token: str) -> bool:
    sent = request.headers.get("Authorization", "")
    return hmac.compare_digest(sent.encode(), f"Bearer {token}".encode())


def _text(text: str, status: int) -> HttpResponse:
    return HttpResponse(f"{text}\n", content_type="text/plain; charset=utf-8", status=status)
