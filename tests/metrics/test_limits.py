"""How much of each resource and tenant is taken, and what waits for it."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries

from django_jobs.lifecycle.operations import limits as operations
from django_jobs.metrics import gauges, limits
from django_jobs.metrics.gauges import read_gauges
from django_jobs.metrics.limits import LimitState, Usage, read_usages, take_limits
from django_jobs.models import Resource, Tenant
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment, transfer_funds
from tests.app.jobs import noop
from tests.factories import copies_of, explain, rows_read, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db


def test_each_job_counts_for_all_that_it_uses() -> None:
    Resource.objects.bulk_create([Resource(name="stripe"), Resource(name="ledger")])
    copies_of(transfer_funds.enqueue(1, "acme"), 2)
    copies_of(refund_payment.enqueue(1), 3)
    bill_tenant.enqueue("acme")
    charge_account.enqueue(7)
    noop.enqueue()
    usages = read_usages()
    assert usages.resources == {"stripe": Usage(5, 2), "ledger": Usage(2, 1)}
    assert usages.tenants == {"acme": Usage(2, 2)}


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_a_scrape_counts_what_waits_whatever_the_server_does_with_backslashes(
    conforming: str,
) -> None:
    Resource.objects.bulk_create([Resource(name="stripe"), Resource(name="ledger")])
    transfer_funds.enqueue(1, '["ac\\me"]')
    run_sql(f"SET LOCAL standard_conforming_strings = {conforming}")
    waiting = {one["resource"]: one["waiting"] for one in read_gauges()["resources"]}
    assert waiting == {"stripe": 1, "ledger": 1}


def test_nothing_is_used_by_jobs_without_gates(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    noop.enqueue()
    with django_assert_num_queries(2):
        usages = read_usages()
    assert (usages.resources, usages.tenants) == ({}, {})


def test_a_thousand_tenants_are_counted_in_three_statements(
    django_assert_num_queries: DjangoAssertNumQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    bill_tenant.enqueue_many({"tenant_id": number} for number in range(1_000))
    copies_of(bill_tenant.enqueue("acme"), 150, "blocked")
    with django_assert_num_queries(3):
        usages = read_usages()
    assert len(usages.tenants) == 1_001
    assert usages.tenants["999"] == Usage(0, 1)
    # The lines share what may be read: 100,000 jobs are 99 for each of 1,001 lines.
    assert usages.tenants["acme"] == Usage(0, 99, more_wait=True)
    few = read_usages(lambda gates: gates.tenant == "acme")
    assert few.tenants["acme"] == Usage(0, 151)
    monkeypatch.setattr(limits, "MOST_LINES", 10)
    assert read_usages().tenants["1"].more_wait


@pytest.mark.usefixtures("fresh_tables")
def test_one_line_of_many_jobs_is_one_step_and_each_count_is_bounded() -> None:
    acme = bill_tenant.enqueue("acme")
    copies_of(acme, 3_000, "blocked")
    copies_of(acme, 5)
    bill_tenant.enqueue("bolt")
    noop.enqueue_many({} for _ in range(3_000))
    run_sql("ANALYZE django_jobs_job_live")
    for sql, parameters, most in (
        (limits.LINES, {"most": 100}, 10),
        (limits.WAITING, {"lines": [acme.gates], "most": 100}, 100),
        (limits.TAKEN, {"most": 100}, 5),
    ):
        assert max(map(rows_read, explain(sql, parameters))) <= most, sql
    line = read_usages().tenants
    assert (line["acme"].waiting, line["bolt"].waiting) == (3_001, 1)


def test_a_line_that_cannot_be_read_is_left_out() -> None:
    Resource.objects.create(name="stripe")
    refund_payment.enqueue(1)
    for odd in ("", "{", '[1, 2, "no gates"]'):
        run_sql(
            "UPDATE django_jobs_job SET gates = %s WHERE id = %s",
            [odd, refund_payment.enqueue(2).pk],
        )
    assert read_usages().resources == {"stripe": Usage(0, 1)}
    (stripe,) = read_gauges()["resources"]
    assert (stripe["taken"], stripe["waiting"]) == (0, 1)


@pytest.mark.parametrize(
    "fields, taken, state",
    [
        ({}, 10_000, LimitState.OK),
        ({"max_concurrency": 2}, 1, LimitState.OK),
        ({"max_concurrency": 2}, 2, LimitState.BUSY),
        ({"max_concurrency": 2}, 3, LimitState.OVER_LIMIT),
        ({"max_concurrency": 2, "breaker_state": "half_open"}, 3, LimitState.HALF_OPEN),
        ({"max_concurrency": 2, "breaker_state": "open"}, 3, LimitState.BREAKER_OPEN),
        ({"breaker_state": "open", "paused_at": "now"}, 3, LimitState.PAUSED),
    ],
)
def test_the_first_state_that_applies_is_shown(
    fields: dict[str, object], taken: int, state: LimitState
) -> None:
    assert LimitState.of(Resource(name="stripe", **fields), taken) == state


def test_a_snapshot_has_resources_and_the_tenants_that_wait_most_first() -> None:
    Resource.objects.create(name="stripe", max_concurrency=1, rate=50.0)
    Resource.objects.create(name="ledger")
    copies_of(transfer_funds.enqueue(1, "acme"), 2)
    copies_of(bill_tenant.enqueue("bolt"), 4, "blocked")
    Tenant.objects.create(name="bolt", weight=3.0, max_concurrency=9)
    Tenant.objects.create(name="idle", weight=2.0)
    operations.pause_tenants(["calm"], reason="unpaid")
    operations.open_breaker(["ledger"], reason="5xx")
    with moment() as now, CaptureQueriesContext(connection) as queries:
        resources, tenants = take_limits()
    assert len(queries) == 5
    assert [(one.name, one.state, one.taken, one.limit, one.waiting) for one in resources] == [
        ("ledger", "breaker_open", 2, None, 1),
        ("stripe", "over_limit", 2, 1, 1),
    ]
    ledger, stripe = resources
    assert (ledger.breaker, ledger.breaker_reason, stripe.rate) == ("open", "5xx", 50.0)
    changed_at = Resource.objects.get(name="ledger").breaker_changed_at
    assert ledger.breaker_seconds in now.since(changed_at)
    assert stripe.breaker_seconds is None
    assert [(one.name, one.state, one.waiting, one.weight) for one in tenants] == [
        ("bolt", "ok", 5, 3.0),
        ("acme", "ok", 1, 1.0),
        ("calm", "paused", 0, 1.0),
    ]
    assert tenants[2].paused_reason == "unpaid"


def scraped(**bounds: int) -> dict[str, tuple[int | None, int | None]]:
    """How many jobs have each resource, and how many wait for it, by a scrape."""
    run_sql("DELETE FROM django_jobs_storedmetrics")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gauges, "BOUNDS", {**gauges.BOUNDS, **bounds})
        rows = gauges.read_gauges()["resources"]
    return {row["resource"]: (row["taken"], row["waiting"]) for row in rows}


def test_a_long_line_hides_no_other_from_a_scrape() -> None:
    Resource.objects.bulk_create([Resource(name=name) for name in ("ledger", "stripe", "unused")])
    copies_of(transfer_funds.enqueue(1, "acme"), 9, "blocked")
    copies_of(refund_payment.enqueue(1), 2, "blocked")
    lines = len({text for (text,) in run_sql("SELECT gates FROM django_jobs_job")})
    assert lines == 2
    seen = scraped(most=5, head=4 * lines)
    assert seen == {"ledger": (0, 4), "stripe": (0, 4 + 3), "unused": (0, 0)}


def test_a_scrape_leaves_out_what_it_did_not_reach() -> None:
    Resource.objects.bulk_create([Resource(name=name) for name in ("ledger", "stripe", "unused")])
    for number in range(4):
        gates = f'["default",["ledger"],null,null,{number},"wait"]'
        run_sql(
            "UPDATE django_jobs_job SET gates = %s, status = 'blocked' WHERE id = %s",
            [gates, transfer_funds.enqueue(1, "acme").pk],
        )
    assert scraped(lines=4)["stripe"] == (0, None)
    assert scraped(lines=5)["stripe"] == (0, 0)
    run_sql("UPDATE django_jobs_job SET resources = '[\"ledger\"]', status = 'ready'")
    assert scraped(most=4) == {"ledger": (4, 0), "stripe": (None, 0), "unused": (None, 0)}
    assert scraped(most=5)["stripe"] == (0, 0)


def test_a_scrape_takes_the_resources_with_the_most_jobs() -> None:
    Resource.objects.bulk_create([Resource(name=name) for name in ("a", "b", "c", "stripe")])
    refund_payment.enqueue(1)
    assert set(scraped(series=2)) == {"a", "stripe"}
