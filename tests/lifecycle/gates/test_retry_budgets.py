"""Retries beyond the budget of a resource wait, and first attempts pass them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_jobs.domain.admission import ALWAYS, FairShares
from django_jobs.domain.gates import parse
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.gates import retry_budgets
from django_jobs.lifecycle.gates.admission import LINES_AT_ONCE, admit
from django_jobs.lifecycle.known_types import own_parameters
from django_jobs.models import Job, Resource
from django_jobs.worker.poller import Admitter
from tests.app.gate_jobs import refund_payment
from tests.factories import (
    claim_ready,
    copies_of,
    explain,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _stripe() -> None:
    Resource.objects.create(name="stripe", retry_budget=0.2)


BEFORE = """
UPDATE django_jobs_job SET rank = place, failures = 1, gates = of_line, concurrency_key = key
FROM unnest(%s::bigint[], %s::text[], %s::text[]) WITH ORDINALITY AS one (job, of_line, key, place)
WHERE id = job
"""


def enqueue(count: int, *, failures: int = 0, **options: str) -> None:
    first = Job.objects.count()
    for number in range(count):
        refund_payment.using(**options).enqueue(number)
    ids = Job.objects.order_by("id").values_list("pk", flat=True)[first:]
    Job.objects.filter(pk__in=list(ids)).update(failures=failures)


def ready() -> tuple[int, int]:
    """The ready first attempts and retries."""
    rows = Job.objects.filter(status="ready")
    return rows.filter(failures=0).count(), rows.filter(failures__gt=0).count()


def test_first_attempts_pass_the_retries_that_have_to_wait() -> None:
    enqueue(20, failures=1)
    enqueue(15)
    admit({"default": 100}, FairShares())
    assert ready() == (15, ALWAYS)
    admit({"default": 100}, FairShares())
    assert ready() == (15, ALWAYS)
    assert Job.objects.filter(status="blocked", failures=1).count() == 20 - ALWAYS
    assert not Job.objects.filter(status="dead").exists()


def test_those_that_may_start_keep_their_order() -> None:
    enqueue(2, failures=1)
    enqueue(3)
    admit({"default": 4}, FairShares())
    waits = Job.objects.get(status="blocked")
    assert waits.pk == Job.objects.latest("pk").pk


def test_the_budget_is_a_share_of_recent_starts_that_fade() -> None:
    Resource.objects.update(recent_starts=400, recent_retries=70, counted_at="2026-01-01T00:00Z")
    enqueue(40, failures=1)
    run_sql("UPDATE django_jobs_resource SET counted_at = clock_timestamp()")
    admit({"default": 100}, FairShares())
    assert ready() == (0, 12)  # 82 of 412; with one more it were over a fifth
    run_sql("UPDATE django_jobs_resource SET counted_at = now() - interval '1 day'")
    admit({"default": 100}, FairShares())
    assert ready() == (0, 12 + ALWAYS)


def test_the_lines_of_a_resource_share_its_budget() -> None:
    for tenant in ("a", "b", "c"):
        enqueue(20, failures=1, tenant=tenant)
    admit({"default": 1_000}, FairShares())
    assert ready() == (0, ALWAYS)


def test_a_slot_is_not_handed_over_past_the_budget() -> None:
    Resource.objects.update(max_concurrency=1)
    enqueue(2)
    admit({"default": 100}, FairShares())
    (held,) = claim_ready(register_worker())
    settle_one(held, Succeeded())
    assert ready() == (0, 0)


@pytest.mark.parametrize("lines", [1, 2_000], ids=["in one line", "in 2,000 lines"])
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_free_slot_goes_to_the_first_attempt_behind_thousands_of_retries(
    lines: int, tenant: str | None
) -> None:
    """In a round of looks at 400 lines each, and none of the retries starts."""
    Resource.objects.update(max_concurrency=1, recent_starts=100.0, recent_retries=99.0)
    run_sql("UPDATE django_jobs_resource SET counted_at = clock_timestamp()")
    behind = refund_payment.using(priority=-9, tenant=tenant).enqueue(1)
    gates = parse(str(Job.objects.get().gates))
    retries = copies_of(behind, 2_000, "blocked")
    each = [gates if lines == 1 else replace(gates, key=f"key:{number}") for number in retries]
    run_sql(BEFORE, [retries, [one.text for one in each], [one.key for one in each]])
    admitter = Admitter(1.0)
    admitter.begin(gated=True)
    looks = 0
    while not sum(ready()):
        admitter.next_at = 0.0
        admitter.admit({"default": 4})
        looks += 1
        assert looks <= 2 * (1 + lines // LINES_AT_ONCE)
    assert ready() == (1, 0)
    assert Job.objects.get(status="ready").pk == behind.pk


@pytest.mark.parametrize("budget", [None, 1.0])
def test_a_resource_without_a_budget_or_with_all_of_it_limits_no_retries(
    budget: float | None,
) -> None:
    Resource.objects.update(retry_budget=budget)
    enqueue(30, failures=1)
    admit({"default": 100}, FairShares())
    assert ready() == (0, 30)
    assert Resource.objects.get().counted_at is None


@pytest.mark.usefixtures("fresh_tables")
def test_an_admission_reads_its_lines_from_the_index() -> None:
    enqueue(200, failures=1)
    enqueue(200)
    run_sql("ANALYZE django_jobs_job_live")
    gates = Job.objects.values_list("gates", flat=True)[0]
    parameters = {"lines": [gates], "counts": [5], "retries": [2], **own_parameters()}
    plan = explain(retry_budgets.ADMIT_WITHIN_BUDGET, parameters)
    assert "django_jobs_gates" in {node.get("Index Name") for node in plan}
    assert "Seq Scan" not in {
        node["Node Type"] for node in plan if node.get("Relation Name") == "django_jobs_job_live"
    }
