"""Who may scrape, and what is sent when there are no numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import Client
from pytest_django import Settings

from tests.factories import run_sql

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.app.metrics_urls")]
URL = "/ops/metrics/"
TOKEN = "päss-4711"

Get = Callable[..., Any]


@pytest.fixture
def get(client: Client, settings: Settings) -> Get:
    """GET the metrics with this token set and that one sent, as a server hands it on."""

    def get(token: str = TOKEN, sent: str | None = f"Bearer {TOKEN}") -> Any:
        settings.DJANGO_JOBS = {"METRICS_TOKEN": token}
        headers = {} if sent is None else {"authorization": sent.encode().decode("latin-1")}
        return client.get(URL, headers=headers)

    return get


def test_the_token_opens_the_metrics(get: Get) -> None:
    response = get()
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "no-store" in response["Cache-Control"]
    assert b'django_jobs_jobs{queue="default",state="ready"} 0.0' in response.content


@pytest.mark.parametrize("sent", [None, "", "Bearer", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
def test_any_other_header_is_refused(get: Get, sent: str | None) -> None:
    response = get(sent=sent)
    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    assert b"django_jobs_" not in response.content


def test_without_a_token_only_debug_opens_them(get: Get, settings: Settings) -> None:
    assert get(token="").status_code == 403
    assert get(token="", sent="Bearer ").status_code == 403
    settings.DEBUG = True
    assert get(token="", sent=None).status_code == 200


def test_only_get_and_head_are_answered(get: Get, client: Client) -> None:
    get()
    headers = {"authorization": f"Bearer {TOKEN}".encode().decode("latin-1")}
    assert client.head(URL, headers=headers).status_code == 200
    assert client.post(URL, headers=headers).status_code == 405


def test_a_missing_table_is_a_503_that_names_the_command(get: Get) -> None:
    run_sql("DROP TABLE django_jobs_storedmetrics")
    response = get()
    assert response.status_code == 503
    assert "run manage.py migrate" in response.text


def test_a_missing_client_is_a_503_that_names_the_extra(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    response = get()
    assert response.status_code == 503
    assert "django-jobs-postgres[metrics]" in response.text


def test_included_urls_without_a_token_are_a_warning(settings: Settings) -> None:
    settings.DJANGO_JOBS = {}
    (warning,) = (one for one in run_checks() if one.id == "django_jobs.W006")
    assert warning.hint
    settings.DJANGO_JOBS = {"METRICS_TOKEN": TOKEN}
    assert "django_jobs.W006" not in {one.id for one in run_checks()}


@pytest.mark.urls("testproject.urls")
def test_a_project_without_the_urls_is_not_warned(settings: Settings) -> None:
    settings.DJANGO_JOBS = {}
    assert "django_jobs.W006" not in {one.id for one in run_checks()}
