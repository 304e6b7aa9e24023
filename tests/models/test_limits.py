"""The database refuses the rows of resources and tenants that could admit nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError

from django_jobs.models import Resource, Tenant

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "values",
    [
        {"weight": 0},
        {"weight": -1},
        {"weight": float("nan")},
        {"weight": float("inf")},
        {"max_concurrency": 0},
        {"rate": 0},
        {"rate": 5.0, "rate_seconds": 0},
        {"burst": 0},
    ],
)
def test_a_tenant_with_an_impossible_number_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="django_jobs_tenant_"):
        Tenant.objects.create(name="acme", **values)


@pytest.mark.parametrize(
    "values",
    [
        {"rate": 0},
        {"rate": -1.0},
        {"rate": float("nan")},
        {"rate": 5.0, "rate_seconds": 0},
        {"max_concurrency": 0},
        {"burst": 0},
        {"breaker_failures": 0},
        {"breaker_window": 0},
        {"breaker_open_for": -1},
        {"retry_budget": -0.1},
        {"retry_budget": 1.1},
        {"retry_budget": float("nan")},
    ],
)
def test_a_resource_with_an_impossible_number_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="django_jobs_resource_"):
        Resource.objects.create(name="stripe", **values)


def test_rows_without_limits_are_accepted() -> None:
    Tenant.objects.create(name="acme", weight=0.001)
    Resource.objects.create(name="stripe", retry_budget=0.0)
