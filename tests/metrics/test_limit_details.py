"""What is known of one resource or one tenant."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.metrics import limits
from django_jobs.metrics.limits import BUCKETS, read_resource, read_tenant
from django_jobs.models import Job, Resource, Tenant
from tests.app.gate_jobs import bill_tenant, refund_payment, transfer_funds
from tests.app.jobs import noop
from tests.factories import copies_of, explain, rows_read, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db


def resource(name: str, **fields: Any) -> Resource:
    return Resource.objects.create(name=name, **fields)


def failed(name: str, *ages: float) -> None:
    """Failures of so many seconds ago."""
    for age in ages:
        run_sql(
            "INSERT INTO django_jobs_resourceoutcome (resource, failed, happened_at)"
            " VALUES (%s, true, clock_timestamp() - make_interval(secs => %s))",
            [name, age],
        )


def test_jobs_that_hold_a_resource_are_counted_and_named() -> None:
    stripe, ledger = resource("stripe"), resource("ledger")
    ready = copies_of(refund_payment.enqueue(1), 7)
    (running,) = copies_of(transfer_funds.enqueue(1, "acme"))
    run_sql(
        "UPDATE django_jobs_job SET status = 'running', worker_id = 1, claimed_at = now()"
        " - interval '5 min' WHERE id = %s",
        [running],
    )
    with moment() as now:
        details = read_resource(stripe, [])
    assert details.row("taken") == {"running": 1, "ready": 7, "more": False}
    named = details.parts["holders"]
    assert [one["id"] for one in named] == [running, *ready]
    assert (named[0]["tenant"], named[1]["seconds"]) == ("acme", None)
    assert named[0]["seconds"] in now.since(Job.objects.get(pk=running).claimed_at)
    assert read_resource(ledger, []).row("taken") == {"running": 1, "ready": 0, "more": False}


def test_jobs_that_wait_are_counted_by_line_and_the_first_by_rank_are_next() -> None:
    stripe = resource("stripe")
    resource("ledger")
    refund = refund_payment.enqueue(1)
    first = transfer_funds.using(priority=50).enqueue(1, "acme")
    copies_of(refund, 9, "blocked")
    details = read_resource(stripe, [])
    assert details.row("waiting") == {"jobs": 11, "more": False}
    assert [one["jobs"] for one in details.parts["lines"]] == [10, 1]
    assert {gates.tenant for gates in details.lines.values()} == {None, "acme"}
    assert [one["id"] for one in details.parts["next"]][:2] == [first.pk, refund.pk]
    assert not details.more_wait


def test_a_line_that_is_longer_than_what_is_counted_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stripe = resource("stripe")
    copies_of(refund_payment.enqueue(1), 9, "blocked")
    monkeypatch.setattr(limits, "MOST_COUNTED", 5)
    details = read_resource(stripe, [])
    assert (details.row("waiting")["jobs"], details.more_wait) == (5, True)


def test_more_jobs_with_resources_than_are_read_are_said_to_be_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stripe, ledger = resource("stripe"), resource("ledger")
    copies_of(refund_payment.enqueue(1), 9)
    assert not read_resource(stripe, []).more_hold
    monkeypatch.setitem(limits.BOUNDS, "most", 5)
    assert [read_resource(row, []).more_hold for row in (stripe, ledger)] == [True, True]


def test_a_tenant_has_a_share_of_each_queue_where_it_waits() -> None:
    acme = Tenant.objects.create(name="acme", weight=3.0)
    Tenant.objects.create(name="calm", weight=50.0, paused_at="2026-01-01T00:00Z")
    for name in ("acme", "acme", "bolt", "calm"):
        bill_tenant.enqueue(name)
    bill_tenant.using(queue="bulk").enqueue("acme")
    bill_tenant.using(queue="emails").enqueue("bolt")
    assert read_tenant(acme).parts["shares"] == [
        {"queue": "default", "jobs": 2, "more": False, "tenants": 2, "weights": 4.0},
        {"queue": "bulk", "jobs": 1, "more": False, "tenants": 1, "weights": 3.0},
    ]
    assert read_tenant(Tenant(name="nobody")).parts["shares"] == []


def test_only_failures_since_the_breaker_changed_count() -> None:
    stripe = resource("stripe", breaker_window=60.0)
    failed("stripe", 1, 31, 59, 61)
    failed("other", 1)

    def seen() -> list[tuple[int, bool, int]]:
        rows = read_resource(stripe, []).parts["outcomes"]
        return sorted((row["ago"], row["counts"], row["failed"]) for row in rows)

    assert seen() == [(0, True, 1), (15, True, 1), (29, True, 1)]
    run_sql("UPDATE django_jobs_resource SET breaker_changed_at = now() - interval '40 s'")
    assert seen() == [(0, True, 1), (15, True, 1), (29, False, 1)]
    run_sql("UPDATE django_jobs_resource SET breaker_window = 1e99")
    stripe.refresh_from_db()
    assert sum(number for _, _, number in seen()) == 4
    assert max(ago for ago, _, _ in seen()) < BUCKETS


def test_the_minutes_are_of_its_job_types() -> None:
    run_sql(
        """INSERT INTO django_jobs_runtotal
        SELECT 60, date_bin('1 min', now(), 'epoch') - n * interval '1 min', 'default', type,
            outcome, runs, zeros, 0, zeros, 0, zeros, 0, zeros, 0, 0, 0
        FROM (VALUES (1, 'app.a', 'succeeded', 7), (1, 'app.b', 'failed', 2),
                     (1, 'app.c', 'succeeded', 99), (90, 'app.a', 'lost', 5))
                AS one (n, type, outcome, runs),
            (SELECT array_fill(0::bigint, ARRAY[19]) AS zeros) AS no_times"""
    )
    rows = read_resource(resource("stripe"), ["app.a", "app.b"]).parts["minutes"]
    assert rows == [{"ago": 1, "succeeded": 7, "failed": 2, "others": 0}]


def most_rows(sql: str, **more: Any) -> float:
    """The most rows that a node of the plan reads."""
    given = {
        **limits.BOUNDS, "most": 100, "each": 100, "name": "stripe", "types": ["app.noop"],
        "window": 60.0, "buckets": 30, "outcomes": 50, "turn_queues": [], "turn_tenants": [],
    }  # fmt: skip
    plan = explain(sql, {**given, **more})
    read_whole = {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
    assert not read_whole & {"django_jobs_job_live", "django_jobs_resourceoutcome"}
    return max(rows_read(node) * node["Actual Loops"] for node in plan)


@pytest.mark.usefixtures("fresh_tables")
def test_a_long_line_and_many_jobs_cost_no_more_than_is_counted() -> None:
    for name in ("stripe", "ledger"):
        resource(name)
    acme, refund = bill_tenant.enqueue("acme"), refund_payment.enqueue(1)
    for job in (acme, refund):
        copies_of(job, 3_000, "blocked")
        copies_of(job, 30)
    noop.enqueue_many({} for _ in range(3_000))
    run_sql(
        "INSERT INTO django_jobs_resourceoutcome (resource, failed, happened_at) SELECT"
        " CASE n % 2 WHEN 0 THEN 'stripe' ELSE 'other' END, true, clock_timestamp() - n"
        " * interval '10 ms' FROM generate_series(1, 6000) AS n"
    )
    run_sql("ANALYZE django_jobs_job_live, django_jobs_resourceoutcome")
    line = {"texts": [refund.gates], "queues": [None]}
    assert most_rows(limits.RESOURCE, **line) <= 100
    line = {"texts": [acme.gates], "queues": ["default"]}
    assert most_rows(limits.TENANT, **line, name="acme") <= 100


def test_two_statements_read_all_of_it() -> None:
    stripe, acme = resource("stripe"), Tenant.objects.create(name="acme")
    resource("ledger")
    transfer_funds.enqueue(1, "acme")
    for read in (lambda: read_resource(stripe, []), lambda: read_tenant(acme)):
        with CaptureQueriesContext(connection) as queries:
            read()
        assert len(queries) <= 2
