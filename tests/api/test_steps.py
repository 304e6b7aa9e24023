"""Steps of chains and groups, before they are put into one."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs import PayloadError, WorkflowError
from tests.app.flow_jobs import charge_card, gather, reserve_stock
from tests.app.jobs import noop


def test_a_step_has_some_arguments_and_the_name_of_its_handler() -> None:
    step = reserve_stock.step(warehouse="north")
    assert (step.name, step.payload) == ("reserve_stock", {"warehouse": "north"})
    assert repr(step) == "<Step reserve_stock>"


def test_many_payloads_are_many_steps() -> None:
    steps = reserve_stock.steps({"order_id": number} for number in range(3))
    assert [step.payload for step in steps] == [{"order_id": number} for number in range(3)]


def test_a_step_takes_results_of_others() -> None:
    reserve = reserve_stock.step(order_id=7)
    step = charge_card.step(order_id=7).taking(stock=reserve)
    assert step.takes == {"stock": "reserve_stock"}
    assert gather.step().taking(a="x").taking(b="y").takes == {"a": "x", "b": "y"}
    assert step.named("charge").name == "charge"


@pytest.mark.parametrize("payload", [{"order": 1}, {"order_id": {1}}, 7, None, [("order_id", 1)]])
def test_a_payload_that_does_not_fit_is_refused_at_once(payload: Any) -> None:
    with pytest.raises(PayloadError, match=r"app.reserve_stock"):
        reserve_stock.steps([payload])


def test_an_argument_cannot_be_given_twice() -> None:
    with pytest.raises(PayloadError, match="payload and takes both give 'stock'"):
        charge_card.step(stock=1).taking(stock="reserve_stock")
    with pytest.raises(PayloadError, match=r"app.charge_card does not take 'stok'"):
        charge_card.step().taking(stok="reserve_stock")


def test_a_step_has_no_idempotency_key_and_a_short_name() -> None:
    with pytest.raises(WorkflowError, match=r"step app.noop: a step has no idempotency_key"):
        noop.using(idempotency_key="k").step()
    with pytest.raises(WorkflowError, match=r"app.noop: the name of a step has 0 characters"):
        noop.step().named("")
