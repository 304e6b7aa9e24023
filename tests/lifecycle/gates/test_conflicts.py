"""What the ``on_conflict`` of a key ends, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_jobs import Concurrency, JobType
from django_jobs.domain.admission import FairShares
from django_jobs.lifecycle.gates import admission, conflicts
from django_jobs.models import Job, Tenant, UniqueKey
from tests.factories import claim_ready, declared, register_worker

pytestmark = pytest.mark.django_db(transaction=True)

Types = dict[str, JobType[..., Any]]


def handler(account: str = "k", limit: int = 1) -> None:
    """What declared types of these tests call."""


def admit(**options: Any) -> None:
    """Look at all lines, as many at a time as ``lines`` says."""
    last = None
    while last != "":
        room = {"default": 100, "bulk": 100}
        last = admission.admit(room, FairShares(), after=last or "", **options).last


def statuses(*jobs: Job) -> list[str]:
    found = dict(Job.objects.values_list("pk", "status"))
    return [found[job.pk] for job in jobs]


def is_asked(job: Job) -> bool:
    return Job.objects.get(pk=job.pk).cancel_requested_at is not None


@pytest.fixture
def types() -> Iterator[Types]:
    """Job types that share the key ``k``: two that cancel, one that replaces and one that waits."""
    policies = {"cancels": "cancel_running", "cancels_too": "cancel_running", "waits": "wait"}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                declared(
                    handler,
                    name=f"test.{name}",
                    concurrency=Concurrency("k", lambda given: given["limit"], policy),
                )
            )
            for name, policy in (policies | {"replaces": "replace_waiting"}).items()
        }


@pytest.mark.parametrize("other", ["cancels_too", "waits", "replaces"])
def test_a_job_stops_none_of_another_type(types: Types, other: str) -> None:
    foreign = types[other].enqueue()
    admit()
    claim_ready(register_worker())
    own = [types["cancels"].enqueue() for _ in range(2)]
    admit()
    assert not is_asked(foreign)
    assert statuses(foreign, *own) == ["running", "cancelled", "blocked"]
    waiting = types[other].enqueue()
    admit()
    assert is_asked(foreign) is (other == "cancels_too")
    assert statuses(own[1], waiting) == ["blocked", "blocked"]


def test_a_job_stops_those_of_its_type_while_others_hold_slots_too(types: Types) -> None:
    foreign, older, old = (types[name].enqueue(limit=3) for name in ("waits", "cancels", "cancels"))
    admit()
    claim_ready(register_worker(), limit=3)
    new = types["cancels"].enqueue(limit=3)
    admit()
    assert [is_asked(job) for job in (foreign, older, old)] == [False, True, False]
    assert statuses(new) == ["blocked"]


def test_jobs_of_another_type_that_are_ready_stay(types: Types) -> None:
    ready = types["waits"].enqueue(limit=2)
    mine = types["cancels"].enqueue(limit=2)
    admit()
    newer = types["cancels"].enqueue(limit=2)
    admit()
    assert statuses(ready, mine, newer) == ["ready", "cancelled", "blocked"]


@pytest.mark.parametrize("lines", [400, 3, 1])
def test_one_job_of_a_key_waits_whatever_else_it_waits_for(types: Types, lines: int) -> None:
    taken = types["waits"].enqueue()
    admit()
    for name in ("a", "b"):
        Tenant.objects.create(name=name)
    replaces = types["replaces"]
    jobs = [
        replaces.using(queue=queue, tenant=tenant).enqueue(limit=limit)
        for queue in ("default", "bulk")
        for tenant in (None, "a", "b")
        for limit in (1, 1)
    ]
    behind = types["waits"].using(concurrency_key="other", queue="bulk").enqueue()
    newest = replaces.using(tenant="a").enqueue()
    jobs += [replaces.using(queue="bulk", concurrency_key="elsewhere").enqueue()]
    admit(lines=lines)
    assert statuses(taken, *jobs[:-1], newest) == ["ready", *["cancelled"] * 12, "blocked"]
    assert statuses(behind, jobs[-1]) == ["ready", "ready"]


def test_a_gate_that_this_package_did_not_write_hinders_no_other(types: Types) -> None:
    types["waits"].enqueue()
    admit()
    broken = types["replaces"].enqueue()
    Job.objects.filter(pk=broken.pk).update(gates="of old")
    old, new = (types["replaces"].enqueue() for _ in range(2))
    admit(lines=1)
    assert statuses(old, new) == ["cancelled", "blocked"]


def test_lines_are_looked_for_only_where_jobs_may_be_ended(
    types: Types, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "LINES_OF_KEYS", "SELECT 1 / 0")
    for _ in range(3):
        types["waits"].enqueue()
    types["waits"].using(queue="bulk").enqueue()
    admit(lines=1)
    types["replaces"].enqueue()
    admit()


@pytest.mark.parametrize("policy", ["discard", "replace_waiting", "cancel_running", "wait"])
def test_the_idempotency_key_of_a_job_that_was_discarded_is_free_again(policy: str) -> None:
    key = Concurrency("k", on_conflict=policy)
    with declared(handler, name="test.unique", concurrency=key) as job_type:
        job_type.enqueue()
        admit()
        claim_ready(register_worker())

        def ask() -> list[int]:
            return [
                job_type.using(queue=queue, idempotency_key="a", unique_for=3600).enqueue().pk
                for queue in ("default", "bulk")
            ]

        first = ask()
        admit()
        again = ask()
        ended = Job.objects.filter(pk__in=first, status="cancelled").count()
    assert ended == {"wait": 0, "discard": 2}.get(policy, 1)
    assert (first == again) == (policy != "discard")


def test_a_discarded_job_frees_no_key_that_a_later_one_has_taken() -> None:
    key = Concurrency("k", on_conflict="discard")
    with declared(handler, name="test.unique", concurrency=key) as job_type:
        job_type.enqueue()
        admit()
        once = job_type.using(idempotency_key="a", unique_for=3600)
        once.enqueue()
        UniqueKey.objects.update(job_id=4711)
        admit()
    assert UniqueKey.objects.get().job_id == 4711
