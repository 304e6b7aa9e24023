"""Tenants share a queue by their weights, and one with many jobs keeps no other waiting."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from django.db import OperationalError

from django_jobs import Concurrency, enqueue_many
from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.gates import admission
from django_jobs.lifecycle.gates.admission import LINES_AT_ONCE, admit
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import Job, Tenant
from tests.factories import claim_ready, declared, due_schedule, look, register_worker

pytestmark = pytest.mark.django_db


def handler(tenant_id: str, number: int) -> None:
    """What declared types of these tests call."""


def enqueue(**counts: int) -> None:
    """Jobs of tenants, those of the first before those of the second."""
    payloads = [{"tenant_id": name} for name, count in counts.items() for _ in range(count)]
    enqueue_many("app.bill_tenant", payloads)


def work(
    jobs: int, room: int, lines: int = LINES_AT_ONCE, shares: FairShares | None = None
) -> list[str]:
    """Run ``jobs`` with this room; returns their tenants in the order of their claims."""
    shares, worker, after = shares or FairShares(), register_worker(), ""
    order: list[int] = []
    while len(order) < jobs:
        after = admit({"default": room}, shares, after=after, lines=lines).last
        held = claim_ready(worker)
        order += [one.id for one in held]
        settle([Ending(one, Succeeded()) for one in held])
    tenants = dict(Job.objects.values_list("pk", "tenant"))
    return [tenants[job] or "" for job in order[:jobs]]


@pytest.mark.parametrize("room", [1, 4, 10])
def test_weights_of_three_and_one_give_three_and_one(room: int) -> None:
    Tenant.objects.create(name="gold", weight=3)
    enqueue(plain=160, gold=260)
    counts = Counter(work(320, room))
    assert counts["gold"] / counts["plain"] == pytest.approx(3, rel=0.05)


def test_schedules_of_a_tenant_that_are_due_first_keep_no_other_waiting() -> None:
    """They fire in any order, and their jobs take turns at the gates."""
    for number in range(40):
        tenant, ago = ("small", 1) if number == 0 else ("large", 100)
        payload = {"tenant_id": tenant}
        due_schedule(ago, name=f"{number}", job_type="app.bill_tenant", payload=payload)
    look()
    assert "small" in work(40, 2)[:2]


@pytest.mark.parametrize("lines", [LINES_AT_ONCE, 30])
def test_a_tenant_with_half_of_all_jobs_keeps_no_other_waiting(lines: int) -> None:
    """``lines`` of 30: the tenants are more than one admission looks at."""
    others = {f"tenant {number:02}": 5 for number in range(99)}
    enqueue(large=495, **others)
    order = work(990, 8, lines)
    waits = sorted(place for place, tenant in enumerate(order, 1) if tenant != "large")
    ideal = 100 * 5  # one of each after the other, five times
    assert waits[int(0.95 * len(waits))] <= 2 * 0.95 * ideal


def test_an_idle_tenant_leaves_its_share_to_the_others_and_saves_up_nothing() -> None:
    shares = FairShares()
    enqueue(early=60)
    assert set(work(40, 4, shares=shares)) == {"early"}
    enqueue(late=60)
    counts = Counter(work(20, 4, shares=shares))
    assert counts["late"] == pytest.approx(10, abs=4)


@pytest.mark.parametrize("room", [1, 4, 20])
def test_a_tenant_with_more_lines_than_a_look_reads_gets_no_larger_share(room: int) -> None:
    """One line for each key. The other tenant has a single one."""
    each = Concurrency("{tenant_id}:{number}")
    with declared(handler, name="test.many", tenant="{tenant_id}", concurrency=each) as many:
        lines = 390 if room > 4 else 150
        many.enqueue_many([{"tenant_id": "large", "number": number} for number in range(lines)])
        enqueue(small=100)
        order = work(lines - 30, room, lines=30)
    begin = order.index("small")  # until its line was looked at, nobody knew of it
    counts = Counter(order[begin : begin + 80])
    assert counts["small"] == pytest.approx(40, abs=max(room, 4))


@pytest.mark.parametrize("room", [4, 20])
def test_two_tenants_with_many_lines_get_no_larger_share_than_those_with_one(room: int) -> None:
    each = Concurrency("{tenant_id}:{number}")
    with declared(handler, name="test.many", tenant="{tenant_id}", concurrency=each) as many:
        for name in ("large-a", "large-b"):
            many.enqueue_many([{"tenant_id": name, "number": number} for number in range(120)])
        enqueue(**{f"small-{number}": 40 for number in range(8)})
        order = work(230, room, lines=30)
    begin = next(place for place, tenant in enumerate(order) if tenant.startswith("small"))
    counts = Counter(order[begin : begin + 100])
    large = counts["large-a"] + counts["large-b"]
    assert large == pytest.approx(20, abs=4)


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
def test_an_admission_that_is_rolled_back_charges_nobody(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The first two are repeated at once, with the same shares."""
    done = admission._share_out_to

    def then_fail(*given: Any, **options: Any) -> None:
        done(*given, **options)
        monkeypatch.setattr(admission, "_share_out_to", done)
        raise OperationalError from psycopg.errors.lookup(state)()

    monkeypatch.setattr(admission, "_share_out_to", then_fail)
    shares = FairShares()
    enqueue(acme=3)
    repeated = pytest.raises(OperationalError) if state == "55P03" else nullcontext()
    with repeated:
        admit({"default": 2}, shares)
    assert shares.time_of("default", "acme") == (0.0 if state == "55P03" else 2.0)
