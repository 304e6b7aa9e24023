"""Resources and tenants: seeded from the settings, then owned by the admin."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from pytest_django import DjangoAssertNumQueries, Settings

from django_jobs.models import Queue, Resource, Tenant


@pytest.mark.django_db
def test_migrate_creates_only_missing_resources_and_tenants(settings: Settings) -> None:
    Resource.objects.create(name="stripe", max_concurrency=7)
    Tenant.objects.create(name="acme", weight=7)
    settings.DJANGO_JOBS = {
        "RESOURCES": {"stripe": {"max_concurrency": 1}, "ledger": {}},
        "TENANTS": {"acme": {"weight": 1}, "other": {"weight": 3, "max_concurrency": 20}},
    }
    call_command("migrate", verbosity=0)
    assert dict(Resource.objects.values_list("name", "max_concurrency")) == {
        "stripe": 7,
        "ledger": None,
    }
    assert set(Tenant.objects.values_list("name", "weight", "max_concurrency")) == {
        ("acme", 7.0, None),
        ("other", 3.0, 20),
    }


def test_the_options_of_a_resource_become_the_row() -> None:
    breaker = {"failures": 20, "window": 40, "open_for": 15}
    row = Resource.configured(
        "stripe",
        {
            "max_concurrency": 10,
            "rate": "50/m",
            "burst": 5,
            "breaker": breaker,
            "retry_budget": 0.2,
        },
    )
    row.clean_fields()
    assert (row.name, row.max_concurrency, row.rate, row.rate_seconds) == ("stripe", 10, 50, 60)
    assert (row.burst, row.retry_budget) == (5, 0.2)
    assert (row.breaker_failures, row.breaker_window, row.breaker_open_for) == (20, 40, 15)


def test_an_option_that_is_left_out_or_none_is_the_default_of_the_row() -> None:
    for options in ({}, dict.fromkeys(("max_concurrency", "rate", "burst", "breaker"))):
        row = Resource.configured("stripe", options)
        row.clean_fields()
        assert (row.max_concurrency, row.rate, row.rate_seconds) == (None, None, 1.0)
        assert (row.breaker_failures, row.breaker_window) == (None, 60.0)
    tenant = Tenant.configured("acme", {"weight": None})
    assert (tenant.weight, tenant.max_concurrency, tenant.rate) == (1.0, None, None)
    tenant = Tenant.configured("acme", {"rate": "50/m", "burst": 5})
    assert (tenant.rate, tenant.rate_seconds, tenant.burst) == (50, 60, 5)


@pytest.mark.django_db
def test_a_row_is_cached_apart_from_those_of_other_tables(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    Resource.objects.bulk_create([Resource(name="default")])
    queue = Queue.objects.recent("default", "default")
    assert isinstance(queue, Queue)
    assert isinstance(Resource.objects.recent("default", "default"), Resource)
    with django_assert_num_queries(0):
        assert Queue.objects.recent("default", "default") is queue


@pytest.mark.django_db(transaction=True)
def test_a_saved_resource_is_read_again() -> None:
    row = Resource.objects.create(name="stripe")
    assert Resource.objects.recent("stripe", "default") == row
    assert Resource.objects.recent("stripe", "default") is Resource.objects.recent(
        "stripe", "default"
    )
    row.max_concurrency = 3
    row.save()
    read = Resource.objects.recent("stripe", "default")
    assert read is not None
    assert read.max_concurrency == 3
