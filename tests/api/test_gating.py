"""What a job type declares of its gates, and the gates of one payload."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from django_jobs import Concurrency, EnqueueError, PayloadError, job
from django_jobs.domain.gates import Gates, OnConflict
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment, transfer_funds
from tests.app.jobs import noop
from tests.factories import declared


def handler(account_id: int, note: str | None = None) -> None: ...


def test_a_job_type_without_gates_gives_its_jobs_none() -> None:
    assert noop.gates_of({}) is None
    assert not noop._gated


def test_a_key_is_filled_with_the_payload() -> None:
    assert charge_account.gates_of(charge_account.bind(7)) == Gates(
        queue="default", key="account:7"
    )


def test_resources_are_sorted_and_each_is_named_once() -> None:
    assert refund_payment.gates_of(refund_payment.bind(1)) == Gates(
        queue="default", resources=("stripe",)
    )
    assert transfer_funds.resources == ("ledger", "stripe")


def test_the_queue_belongs_to_the_gates() -> None:
    assert bill_tenant.gates_of(bill_tenant.bind("acme")) == Gates(tenant="acme", queue="default")
    bulk = bill_tenant.using(queue="bulk")
    assert bulk.gates_of(bulk.bind(7)) == Gates(tenant="7", queue="bulk")
    assert charge_account.using(queue="bulk").gates_of(charge_account.bind(7)) == Gates(
        queue="bulk", key="account:7"
    )


def test_a_missing_argument_has_its_default() -> None:
    assert transfer_funds.gates_of(transfer_funds.bind(7)) == Gates(
        queue="default",
        key="account:7:EUR",
        limit=3,
        on_conflict=OnConflict.DISCARD,
        resources=("ledger", "stripe"),
    )


def test_a_function_may_find_no_tenant_and_no_key() -> None:
    with declared(
        handler,
        name="test.nothing",
        tenant=lambda payload: None,
        concurrency=Concurrency(lambda payload: None),
    ) as job_type:
        assert job_type.gates_of({"account_id": 7}) is None


def test_the_limit_of_a_key_may_follow_from_the_payload() -> None:
    with declared(
        handler,
        name="test.limit",
        concurrency=Concurrency("k", limit=lambda payload: payload["account_id"] * 2),
    ) as job_type:
        assert job_type.gates_of({"account_id": 7}) == Gates(queue="default", key="k", limit=14)
        with pytest.raises(EnqueueError, match=r"test.limit: .* limit is a whole number from 1"):
            job_type.gates_of({"account_id": 0})


def test_a_function_cannot_change_the_payload() -> None:
    with declared(
        handler, name="test.change", tenant=lambda payload: str(payload.pop("account_id"))
    ) as job_type:
        payload = {"account_id": 7}
        assert job_type.gates_of(payload) == Gates(tenant="7", queue="default")
        assert payload == {"account_id": 7}


def test_one_request_may_name_its_own_gates() -> None:
    chosen = transfer_funds.using(tenant="{acme}", concurrency_key="k{", resources="ledger")
    assert chosen.gates_of(transfer_funds.bind(7)) == Gates(
        tenant="{acme}",
        queue="default",
        key="k{",
        limit=3,
        on_conflict=OnConflict.DISCARD,
        resources=("ledger",),
    )
    plain = noop.using(concurrency_key="k", resources=["b", "a"])
    assert plain.gates_of({}) == Gates(queue="default", key="k", resources=("a", "b"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tenant": ""}, "tenant has 0 characters, not 1 to 100"),
        ({"tenant": "a" * 101}, "tenant has 101 characters"),
        ({"tenant": 7}, "tenant is an int, not text"),
        ({"tenant": "a\n"}, "tenant has a control character"),
        ({"concurrency_key": "k" * 201}, "concurrency_key has 201 characters, not 1 to 200"),
        ({"concurrency_key": b"k"}, "concurrency_key is a bytes, not text"),
        ({"resources": 7}, "resources are names, such as"),
        ({"resources": {"a": 1}}, "resources are names, such as"),
        ({"resources": [["a"]]}, "the name of a resource is 1 to 100 letters"),
        ({"resources": ["a b"]}, "the name of a resource is 1 to 100 letters"),
        ({"resources": ""}, "the name of a resource is 1 to 100 letters"),
        ({"resources": list("abcdefghi")}, "a job uses at most 8 resources, not 9"),
    ],
)
def test_an_unusable_option_of_a_request_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EnqueueError, match=f"app.noop: {message}"):
        noop.using(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tenant": "{acount_id}"},
            "tenant '{acount_id}' names 'acount_id', which the handler does not take; did you "
            "mean 'account_id'[?] its arguments are: account_id, note",
        ),
        ({"concurrency": Concurrency("k:{other}")}, "names 'other', which the handler does not"),
        ({"tenant": "{account_id.pk}"}, "tenant: '{account_id.pk}' is not a template"),
        ({"tenant": "a" * 101}, "tenant has 101 characters"),
        ({"tenant": ""}, "tenant has 0 characters"),
        ({"concurrency": Concurrency("k" * 201)}, "concurrency has 201 characters"),
        ({"concurrency": Concurrency("k\t")}, "concurrency has a control character"),
        ({"resources": ["a/b"]}, "the name of a resource is 1 to 100 letters"),
    ],
)
def test_a_gate_that_no_payload_can_fill_is_refused_at_once(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"@job test.refused: .*{message}"):
        job(name="test.refused", **options)(handler)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tenant": 7}, "tenant is text or a function of the payload, not 7"),
        ({"tenant": asyncio.sleep}, "tenant is async; write a plain function"),
        ({"tenant": lambda: "acme"}, "tenant does not take one argument, the payload"),
        ({"concurrency": "account:{account_id}"}, "concurrency is a Concurrency, such as"),
        ({"concurrency": 1}, "concurrency is a Concurrency"),
    ],
)
def test_a_gate_of_another_type_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"@job test.refused: {message}"):
        job(name="test.refused", **options)(handler)


def test_a_handler_that_takes_anything_may_lack_an_argument() -> None:
    def anything(**given: int) -> None: ...

    with declared(anything, name="test.anything", tenant="{account_id}") as job_type:
        assert job_type.gates_of({"account_id": 7}) == Gates(tenant="7", queue="default")
        with pytest.raises(PayloadError, match=r"test.anything: tenant .* 'account_id' is missing"):
            job_type.gates_of({})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the argument 'tenant_id' is None, not text or a number"),
        ({"a": "secret"}, "the argument 'tenant_id' is a dict, not text or a number"),
        (["secret"], "the argument 'tenant_id' is a list, not text or a number"),
        ("secret" * 20, "the filled text has 120 characters, not 1 to 100"),
        ("secret\r\n", "the filled text has a control character"),
        ("", "the filled text has 0 characters, not 1 to 100"),
        (10**4000, "the filled text has 4,001 characters, not 1 to 100"),
    ],
)
def test_a_payload_that_fills_no_template_is_refused_without_its_values(
    value: Any, message: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        bill_tenant.enqueue(value)
    assert str(caught.value) == f"app.bill_tenant: tenant '{{tenant_id}}': {message}"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda payload: payload["missing"], "the function of the tenant raised KeyError"),
        (lambda payload: 7, "the tenant that its function returned is an int, not text"),
        (lambda payload: "a" * 101, "the tenant that its function returned has 101 characters"),
    ],
)
def test_a_function_that_fails_is_named_with_its_job_type(
    function: Callable[[dict[str, Any]], Any], message: str
) -> None:
    with (
        declared(handler, name="test.fails", tenant=function) as job_type,
        pytest.raises(EnqueueError, match=f"test.fails: {message}") as caught,
    ):
        job_type.enqueue(7)
    if "raised" in message:
        assert isinstance(caught.value.__cause__, KeyError)
        assert 'payload["missing"]' in "".join(traceback.format_exception(caught.value))
