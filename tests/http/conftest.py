"""A client that speaks JSON, and the settings that let it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from tests.factories import make_user

URL = "/api/eu/jobs/"
PERMISSIONS = ("enqueue_job", "view_job", "view_job_payload", "view_job_error", "cancel_job")


class JsonClient(Client):
    """Sends JSON and checks CSRF tokens, as a browser has to."""

    def __init__(self) -> None:
        super().__init__(enforce_csrf_checks=True)

    def enqueue(self, job_type: Any = "app.add", *, key: str | None = None, **body: Any) -> Any:
        return self.send(URL, {"job_type": job_type, **body}, key=key)

    def send(self, url: str, body: Any = "", *, key: str | None = None, **more: Any) -> Any:
        headers = {"x-csrftoken": self.cookies["csrftoken"].value} if self.cookies else {}
        headers |= {} if key is None else {"idempotency-key": key}
        return self.post(url, body, content_type="application/json", headers=headers, **more)

    def login_as(self, user: Any) -> None:
        self.force_login(user)
        self.cookies["csrftoken"] = "a" * 32


@pytest.fixture
def client(settings: Settings, db: None) -> JsonClient:
    """The client of a user who may do everything with two job types."""
    allowed = {"job_types": ["app.add", "app.noop"]}
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HTTP": allowed}
    client = JsonClient()
    client.login_as(make_user(*PERMISSIONS))
    return client
