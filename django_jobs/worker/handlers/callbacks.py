"""POST to an address of others: no redirect is followed, and no body of an answer is read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib import request
from urllib.error import HTTPError

from django.core.serializers.json import DjangoJSONEncoder

from ...conf import conf
from ...domain.callbacks import secrets_for, signed
from ...domain.workflows import CALLBACK
from ...exceptions import Discard, Snooze
from ...models import Job

TIMEOUT_SECONDS = 10.0
"""For each answer."""


class _NoRedirects(request.HTTPRedirectHandler):
    """A redirected POST would become a GET, and another address is not the one that is allowed."""

    def redirect_request(self, *args: Any) -> None:
        return None


def post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Send JSON. Raises ``OSError`` if there is no answer, and ``HTTPError`` unless it is 2xx."""
    all_headers = {"Content-Type": "application/json", "User-Agent": "django_jobs", **headers}
    posted = request.Request(url, body, all_headers, method="POST")  # noqa: S310 — http(s) alone
    try:
        request.build_opener(_NoRedirects).open(posted, timeout=TIMEOUT_SECONDS).close()
    except HTTPError as error:
        error.close()
        raise


def call_at_end(job_id: int, link: str) -> None:
    """Say that the job has ended, to the address in its headers. Raises :class:`Discard` if that is
    not allowed now, or the answer is 410."""
    ended = Job.objects.using(conf().database).get(pk=job_id)
    if not ended.is_final:
        raise Snooze(60, "the job runs again")
    address = ended.headers[CALLBACK]
    try:
        secrets = secrets_for(address, conf().http.get("callback_hosts", {}))
    except ValueError as error:
        raise Discard(f"the callback_url {error}") from None
    links = {"self": link}
    data = {"id": job_id, "job_type": ended.job_type, "status": ended.status, "links": links}
    message = {"type": "job.finished", "timestamp": ended.finished_at, "data": data}
    body = json.dumps(message, cls=DjangoJSONEncoder).encode()
    try:
        post(address, body, signed(f"job-{job_id}", int(time.time()), body, secrets))
    except HTTPError as error:
        if error.code == 410:
            raise Discard("the receiver answered 410 Gone") from None
        raise
