"""Addresses that nobody would write by hand answer."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.urls import reverse

from django_jobs.models import Job, Overview
from tests.factories import make_dead

from .walking import Page, change_url, list_url

pytestmark = pytest.mark.django_db

MODELS = [
    model
    for model in admin.site._registry
    if model._meta.app_label == "django_jobs" and model is not Overview  # which has no rows
]
NUL = "a\x00b"


def parameters(model: Any) -> list[str]:
    """All that a list takes in its address, and something that it does not."""
    page: Any = admin.site._registry[model]
    filters = [one.parameter_name for one in page.list_filter]
    return [*filters, *page.lookups_allowed, "q", "o", "p", "e", "_popup", "_to_field", "unheard"]


@pytest.mark.parametrize("model", MODELS)
def test_a_nul_in_the_address_of_a_list_is_a_wrong_parameter(page: Page, model: Any) -> None:
    address = list_url(model)
    for query in ({"x\x00": "a"}, *({name: ["a", NUL]} for name in parameters(model))):
        answered = page.client.get(address, query)
        assert answered.status_code == 302, query
        assert answered["Location"] == f"{address}?e=1"
    page.text(f"{address}?e=1")


@pytest.mark.parametrize("model", MODELS)
def test_a_nul_in_the_number_of_a_row_is_not_found(page: Page, model: Any) -> None:
    prefix = f"admin:django_jobs_{model._meta.model_name}"
    for what in ("change", "history", "delete"):
        url = reverse(f"{prefix}_{what}", args=["1\x00"])
        assert page.client.get(url).status_code in (302, 403, 404)


def test_a_nul_in_the_address_of_a_page_is_answered(page: Page) -> None:
    pk = make_dead().pk
    for name in ("_changelist_filters", "_popup", "_to_field"):
        answered = page.client.get(change_url(Job, pk), {name: NUL})
        assert answered.status_code in (200, 400), name


def test_a_nul_in_the_initial_data_of_a_form_is_handled(page: Page) -> None:
    prefix = "admin:django_jobs_schedule"
    for name in ("name", "job_type", "cron", "timezone", "copy"):
        for url in (reverse(f"{prefix}_add"), reverse(f"{prefix}_preview")):
            assert page.client.get(url, {name: NUL}).status_code == 200, (url, name)


def test_a_nul_in_a_reason_is_answered(page: Page) -> None:
    pk = make_dead().pk
    answered = page.confirm(Job, "replay_jobs", pk, reason=NUL)
    assert answered.status_code in (200, 302)
