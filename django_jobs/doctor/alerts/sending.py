"""Sends one message of alerts: by mail, to a webhook or to a function of the project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError

from django.conf import settings
from django.core.mail import send_mail
from django.utils.module_loading import import_string

from ...domain.alerts import MAILTO, WEB

TIMEOUT_SECONDS = 10.0
"""For each answer of a webhook."""


class _NoRedirects(request.HTTPRedirectHandler):
    """A redirected POST would become a GET, and another address is not the one of the settings."""

    def redirect_request(self, *args: Any) -> None:
        return None


def send(to: str, message: Mapping[str, Any]) -> None:
    """Send ``message``, which has ``rule``, ``test`` and ``situations``. Raises what the mail
    server, the webhook or the function raises."""
    if to.startswith(MAILTO):
        _send_mail(to.removeprefix(MAILTO).split(","), message)
    elif to.startswith(WEB):
        body = json.dumps(message).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "django_jobs"}
        posted = request.Request(to, body, headers, method="POST")  # noqa: S310 — http(s) alone
        try:
            request.build_opener(_NoRedirects).open(posted, timeout=TIMEOUT_SECONDS).close()
        except HTTPError as error:
            error.close()
            raise
    else:
        import_string(to)(message)


def why_not_sent(error: BaseException) -> str:
    """The error without its text, which may name the address of the webhook."""
    if isinstance(error, HTTPError):
        return f"the webhook answered {error.code}"
    cause = error.reason if isinstance(error, URLError) else error
    name = type(cause).__name__
    if isinstance(cause, OSError) and cause.errno and cause.strerror:
        return f"{name}: {cause.strerror}"
    return name


def _send_mail(addresses: list[str], message: Mapping[str, Any]) -> None:
    lines = [
        f"{'Ended' if one['ended_at'] else 'Began'}: {one['problem']}"
        for one in message["situations"]
    ]
    subject = "A test of django_jobs' alerts"
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        subject = " ".join(f"{lines[0]}{more}".split())
    body = []
    for line, one in zip(lines, message["situations"], strict=True):
        until = f", until {one['ended_at']}" if one["ended_at"] else ""
        body.append(f"{line}\nSince {one['began_at']}{until}")
    body = body or ["This message is a test. Nothing is wrong."]
    body.append(f'Sent for {message["rule"]!r} in DJANGO_JOBS["ALERTS"].')
    subject = f"{settings.EMAIL_SUBJECT_PREFIX}{subject}"[:200]
    send_mail(subject, "\n\n".join(body), None, [address.strip() for address in addresses])
