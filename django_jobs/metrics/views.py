"""The page that Prometheus scrapes."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ..conf import conf
from ..models.database import DATABASE_ERRORS, migration_problem
from .exposition import render
from .stored import NoMetrics


@never_cache
@require_safe
@transaction.non_atomic_requests
def metrics(request: HttpRequest) -> HttpResponse:
    """All metrics, for those who send ``METRICS_TOKEN``. Without that setting they are served with
    ``DEBUG`` only."""
    if not conf().metrics_token and not settings.DEBUG:
        answer = _text('DJANGO_JOBS["METRICS_TOKEN"] is not set.', 403)
    else:
        answer = respond(request.headers)
    response = HttpResponse(answer.body, content_type=answer.content_type, status=answer.status)
    if answer.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    return response


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


def respond(headers: Mapping[str, str], *, is_local: bool = True) -> Answer:
    """All metrics, or why there are none. If ``METRICS_TOKEN`` is set, they need it; without it
    only those get them who ask on this machine. ``headers`` are those of the request, with names as
    ``Accept``."""
    token = conf().metrics_token
    if not token and not is_local:
        return _text('DJANGO_JOBS["METRICS_TOKEN"] is not set.', 403)
    # Servers decode each byte of a header to one character.
    sent = headers.get("Authorization", "").encode("latin-1", "replace")
    if token and not hmac.compare_digest(sent, f"Bearer {token}".encode()):
        return _text("Send the header Authorization: Bearer, with METRICS_TOKEN.", 401)
    try:
        return Answer(200, *render(headers.get("Accept", "")))
    except (NoMetrics, ImproperlyConfigured) as error:
        return _text(str(error), 503)
    except DATABASE_ERRORS as error:
        problem = migration_problem(error) or f"{type(error).__name__} of the jobs' database"
        return _text(f"No metrics: {problem}.", 503)


def _text(text: str, status: int) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())
