"""The accounts of the chaos test about gates find what was exceeded, what leaked, and what was not
tried."""

from __future__ import annotations

import pytest

from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.gates.admission import admit
from tests.app.gate_jobs import bill_tenant, charge_account
from tests.chaos import gates
from tests.chaos.gates import BURST, RATE, RATED, SLOTS
from tests.factories import claim_ready, register_worker, run_sql, settle_one
from tests.test_chaos_partitions import Here

CHANGE = """
INSERT INTO accounts.slot (txid, at, gate, change)
VALUES (%s::text::xid8, to_timestamp(%s), %s, %s)
"""
STARTS = [0.0] * BURST + [number / RATE for number in range(1, 4)]
"""What a bucket that is full at first allows."""


@pytest.fixture
def _ledger(db: None) -> None:
    """Of slots that were taken one after the other, and freed, and of starts."""
    run_sql("CREATE SCHEMA accounts")
    gates.make(Here())
    for gate, slots in SLOTS.items():
        note(gate, *[1] * slots, *[-1] * slots)
    for at in STARTS:
        for gate in RATED:
            note(gate, 1, at=at)


def note(gate: str, *changes: int, at: float = 0.0) -> None:
    """Each change in a transaction for itself."""
    for change in changes:
        ((number,),) = run_sql("SELECT count(*) FROM accounts.slot")
        run_sql(CHANGE, [number + 1, at, gate, change])


def found() -> dict[int, str]:
    return dict(gates.problems(Here()))


@pytest.mark.usefixtures("_ledger")
def test_limits_that_were_reached_and_not_exceeded_balance() -> None:
    assert found() == {}


@pytest.mark.usefixtures("_ledger")
@pytest.mark.parametrize("gate", SLOTS)
def test_a_slot_too_many_and_a_slot_that_leaks_do_not_balance(gate: str) -> None:
    number = gates.ACCOUNT[gate.split()[0]]
    note(gate, *[1] * (SLOTS[gate] + 1), *[-1] * (SLOTS[gate] + 1))
    assert found() == {number: f"{gate}: {SLOTS[gate] + 1} taken of {SLOTS[gate]} slots"}
    run_sql("DELETE FROM accounts.slot WHERE gate = %s", [gate])
    note(gate, *[1] * SLOTS[gate])
    assert found() == {number: f"{gate}: {SLOTS[gate]} slots are taken in the end"}


@pytest.mark.usefixtures("_ledger")
@pytest.mark.parametrize("gate", RATED)
def test_a_start_too_many_in_any_window_does_not_balance(gate: str) -> None:
    note(gate, 1, at=STARTS[-1] + 0.5 / RATE)
    assert found() == {20: f"{gate}: in one window 0.50 more starts than burst + rate"}


@pytest.mark.usefixtures("_ledger")
def test_a_gate_at_which_nothing_waited_does_not_balance() -> None:
    run_sql("DELETE FROM accounts.slot")
    assert set(found()) == {18, 19, 20, 21}


@pytest.mark.usefixtures("_ledger")
def test_the_ledger_notes_the_slots_of_real_jobs() -> None:
    charge_account.enqueue(7)
    bill_tenant.enqueue("acme")
    last = "SELECT gate, change FROM accounts.slot ORDER BY id DESC LIMIT 2"
    admit({"default": 10}, FairShares())
    assert set(run_sql(last)) == {("key account:7", 1), ("tenant acme", 1)}
    for held in claim_ready(register_worker()):
        settle_one(held, Succeeded())
    assert set(run_sql(last)) == {("key account:7", -1), ("tenant acme", -1)}
