"""Jobs with gates begin blocked, with the gates in their columns."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest
from pytest_django.fixtures import DjangoAssertNumQueries

from django_jobs import PayloadError, UnknownResource
from django_jobs.domain.gates import Gates, OnConflict, parse
from django_jobs.lifecycle import enqueueing, notifying
from django_jobs.lifecycle.job_columns import gate_values
from django_jobs.models import Job, Resource
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment, transfer_funds
from tests.app.jobs import noop
from tests.factories import declared, explain

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _resources(db: None) -> None:
    Resource.objects.bulk_create([Resource(name="stripe"), Resource(name="ledger")])


GATES = Gates(
    tenant="Zoë\\\"' ☃",
    queue="default",
    key="account:7:EUR",
    limit=3,
    on_conflict=OnConflict.DISCARD,
    resources=("ledger", "stripe"),
)


def test_a_job_with_gates_begins_blocked() -> None:
    enqueued = charge_account.enqueue(7)
    assert enqueued.status == "blocked"
    stored = Job.objects.get(pk=enqueued.pk)
    assert (stored.status, stored.concurrency_key) == ("blocked", "account:7")
    assert stored.gates == Gates(queue="default", key="account:7").text
    assert (stored.tenant, stored.resources) == (None, None)


def test_a_job_with_gates_that_is_due_later_begins_scheduled() -> None:
    enqueued = charge_account.using(delay=60).enqueue(7)
    assert (enqueued.status, enqueued.concurrency_key) == ("scheduled", "account:7")


def test_a_job_without_gates_has_none_of_the_columns() -> None:
    stored = Job.objects.get(pk=noop.enqueue().pk)
    columns = stored.tenant, stored.concurrency_key, stored.resources, stored.gates
    assert columns == (None, None, None, None)
    assert stored.status == "ready"


def test_the_returned_job_with_gates_is_the_row_that_was_written() -> None:
    enqueued = transfer_funds.enqueue(7, tenant=GATES.tenant)
    stored = Job.objects.get(pk=enqueued.pk)
    for field in Job._meta.concrete_fields:
        assert getattr(stored, field.attname) == getattr(enqueued, field.attname), field.name
    assert enqueued.resources == ["ledger", "stripe"]
    assert stored.gates == GATES.text
    assert parse(GATES.text) == GATES


def test_a_held_key_returns_the_job_with_gates() -> None:
    keyed = charge_account.using(idempotency_key="k")
    first, second = keyed.enqueue(7), keyed.enqueue(7)
    assert (second.pk, second.deduplicated, second.status) == (first.pk, True, "blocked")


@pytest.mark.parametrize("gated", [False, True])
def test_an_enqueue_is_one_statement(
    gated: bool, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def enqueue() -> Any:
        return bill_tenant.enqueue("acme") if gated else noop.enqueue()

    enqueue()  # reads the queue
    with django_assert_num_queries(1):
        enqueue()


@pytest.mark.parametrize("keys", [None, ["a", "b", "c"]])
def test_of_many_jobs_only_those_with_a_gate_are_blocked(keys: list[str] | None) -> None:
    def tenant(payload: dict[str, Any]) -> str | None:
        return payload["name"] or None

    def handler(name: str) -> None: ...

    with declared(handler, name="test.some", tenant=tenant) as job_type:
        payloads = [{"name": "acme"}, {"name": ""}, {"name": "other"}]
        ids = job_type.enqueue_many(payloads, idempotency_keys=keys)
        later = job_type.using(delay=60).enqueue_many(payloads)
    rows = Job.objects.in_bulk(ids)
    assert [(rows[id_].status, rows[id_].tenant) for id_ in ids] == [
        ("blocked", "acme"),
        ("ready", None),
        ("blocked", "other"),
    ]
    assert (rows[ids[1]].gates, rows[ids[1]].resources) == (None, None)
    rows = Job.objects.in_bulk(later)
    assert [rows[id_].status for id_ in later] == ["scheduled"] * 3
    assert [rows[id_].tenant for id_ in later] == ["acme", None, "other"]


def test_a_payload_of_many_that_fills_no_template_is_named_by_its_index() -> None:
    with pytest.raises(
        PayloadError, match=r"payload\[1\]: app.bill_tenant: tenant '{tenant_id}': the"
    ):
        bill_tenant.enqueue_many([{"tenant_id": "acme"}, {"tenant_id": None}])
    assert not Job.objects.exists()


def test_held_keys_of_many_jobs_with_gates_return_their_holders() -> None:
    first = charge_account.enqueue_many([{"account_id": 1}], idempotency_keys=["k"])
    second = charge_account.enqueue_many(
        [{"account_id": 2}, {"account_id": 3}, {"account_id": 4}],
        idempotency_keys=["k", "new", None],
    )
    assert second[:1] == first
    keys = (
        Job.objects.filter(pk__in=second).order_by("pk").values_list("concurrency_key", flat=True)
    )
    assert list(keys) == ["account:1", "account:3", "account:4"]


def test_the_largest_gates_fit_into_the_index() -> None:
    characters = random.Random(7).choices([chr(code) for code in range(0x10000, 0x20000)], k=300)
    names = ["".join(random.Random(n).choices(string.ascii_letters, k=100)) for n in range(8)]
    largest = noop.using(
        tenant="".join(characters[:100]),
        concurrency_key="".join(characters[100:]),
        resources=names,
    )
    Resource.objects.bulk_create(Resource(name=name) for name in names)
    stored = Job.objects.get(pk=largest.enqueue().pk)
    assert len((stored.gates or "").encode()) > 2_000
    assert stored.status == "blocked"


def test_an_unknown_resource_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownResource) as caught:
        noop.using(resources=["stripe", "strip"]).enqueue()
    assert str(caught.value) == (
        "app.noop: no resource is named 'strip'; did you mean 'stripe'? known are: ledger, stripe. "
        'Resources come from DJANGO_JOBS["RESOURCES"] after migrate, or from the admin'
    )
    Resource.objects.all().delete()
    Resource.objects.forget_recent()
    with pytest.raises(UnknownResource, match=r"known are: none \(run migrate\)\."):
        refund_payment.enqueue_many([{"payment_id": 7}])
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_for_known_resources_is_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifying, "THROTTLE_SECONDS", 3600.0)  # one NOTIFY, however slow this is
    transfer_funds.enqueue(7)
    with django_assert_num_queries(2):
        transfer_funds.enqueue(7)
        transfer_funds.using(priority=1).enqueue(7)


@pytest.mark.parametrize("name", ["ENQUEUE_GATED", "ENQUEUE_KEYED_GATED"])
def test_an_insert_of_jobs_with_gates_reads_no_table(name: str) -> None:
    parameters: dict[str, Any] = {**transfer_funds.request().parameters, "payload": "{}"}
    values = gate_values(GATES)
    if name == "ENQUEUE_GATED":
        parameters |= {"key": None, **values}
    else:
        parameters |= {"payloads": ["{}"], "keys": ["k"]}
        parameters |= {column: [value] for column, value in values.items()}
    nodes = explain(getattr(enqueueing, name), parameters)
    read = [node for node in nodes if node["Node Type"] != "ModifyTable"]
    assert read
    assert [node for node in read if "Relation Name" in node] == []
