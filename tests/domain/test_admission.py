"""Free slots and room are shared out, and never more of them than there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.admission import FairShares, Line, Supply, share_out
from django_jobs.domain.gates import Gates

NAMES = st.sampled_from(["a", "b", "c"])
GATES = st.builds(
    Gates,
    tenant=st.none() | NAMES,
    queue=st.just("default"),
    key=st.none() | NAMES,
    limit=st.just(3),
    resources=st.lists(NAMES, unique=True).map(tuple),
)
SUPPLIES = st.builds(
    Supply,
    keys=st.dictionaries(NAMES, st.integers(0, 5)),
    resources=st.dictionaries(NAMES, st.integers(0, 5)),
    tenants=st.dictionaries(NAMES, st.integers(0, 5)),
    queues=st.dictionaries(st.just("default"), st.integers(-3, 20)),
    room=st.dictionaries(st.just("default"), st.integers(-3, 20)),
    metered=st.frozensets(NAMES),
)


def line(gates: Gates, rank: float = 0.0) -> Line:
    return Line(gates.text, rank, "default")


@given(st.lists(GATES, max_size=12), SUPPLIES)
def test_no_gate_admits_more_than_it_has_left(gates: list[Gates], supply: Supply) -> None:
    lines = list({one.text: line(one, rank) for rank, one in enumerate(gates)}.values())
    granted = share_out(lines, supply, FairShares(), {})
    keys: Counter[str] = Counter()
    resources: Counter[str] = Counter()
    tenants: Counter[str] = Counter()
    room = 0
    assert sum(granted.values()) <= max(supply.queues.get("default", 10_000), 0)
    for one in lines:
        count = granted.get(one.text, 0)
        if one.gates.key is not None:
            keys[one.gates.key] += count
        if one.gates.tenant is not None:
            tenants[one.gates.tenant] += count
        resources.update(dict.fromkeys(one.gates.resources, count))
        if supply.is_metered(one.gates):
            room += count
    assert all(keys[name] <= max(3 - supply.keys.get(name, 0), 0) for name in keys)
    assert all(resources[name] <= most for name, most in supply.resources.items())
    assert all(tenants[name] <= most for name, most in supply.tenants.items())
    assert room <= max(supply.room.get("default", 0), 0)


@given(st.lists(GATES, max_size=12), SUPPLIES)
def test_what_could_be_admitted_is(gates: list[Gates], supply: Supply) -> None:
    lines = list({one.text: line(one, rank) for rank, one in enumerate(gates)}.values())
    left = supply.copy()
    granted = share_out(lines, supply, FairShares(), {})
    for one in lines:
        left.take(one, granted.get(one.text, 0))
    for one in lines:
        if not supply.is_metered(one.gates) or left.room.get("default", 0) >= 1:
            assert left.left(one) == 0 or granted.get(one.text, 0) > 0


def test_the_best_rank_gets_a_slot_that_two_lines_need() -> None:
    low = Gates(queue="default", key="k", resources=("a",))
    high = Gates(queue="default", key="k", resources=("b",))
    assert share_out([line(low, 2.0), line(high, 1.0)], Supply(), FairShares(), {}) == {
        high.text: 1
    }


def test_a_resource_without_a_row_limits_nothing() -> None:
    gates = Gates(queue="default", resources=("gone",))
    assert share_out([line(gates)], Supply(), FairShares(), {})[gates.text] > 100


def tenant(name: str) -> Line:
    return line(Gates(tenant=name, queue="default"))


@given(
    weights=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=2),
    room=st.integers(1, 50),
)
def test_tenants_that_wait_share_by_their_weights(weights: dict[str, int], room: int) -> None:
    shares, got, looks = FairShares(), Counter[str](), 1_000 // room + 1
    by_name = {name: float(weight) for name, weight in weights.items()}
    lines = [tenant(name) for name in weights]
    for _ in range(looks):
        granted = share_out(lines, Supply(room={"default": room}), shares, by_name)
        for one in lines:
            name, count = one.gates.tenant or "", granted.get(one.text, 0)
            shares.charge("default", name, by_name[name], count)
            got[name] += count
        shares.advance()
    total = sum(got.values())
    assert total == looks * room
    for name, weight in weights.items():
        fair = total * weight / sum(weights.values())
        assert abs(got[name] - fair) <= 10


def test_an_idle_tenant_saves_up_nothing_and_its_share_goes_to_the_others() -> None:
    shares = FairShares()
    for _ in range(10):
        granted = share_out([tenant("busy")], Supply(room={"default": 100}), shares, {})
        assert granted[tenant("busy").text] == 100
        shares.charge("default", "busy", 1.0, 100)
        shares.advance()
    both = [tenant("busy"), tenant("idle")]
    granted = share_out(both, Supply(room={"default": 100}), shares, {})
    assert granted[tenant("idle").text] in (50, 51)


@given(st.booleans(), st.sampled_from(["resource", "key"]))
def test_of_lines_with_and_without_a_tenant_the_best_rank_goes_first(
    tenant_first: bool, shared: str
) -> None:
    if shared == "resource":
        plain = Gates(queue="default", resources=("stripe",))
    else:
        plain = Gates(queue="default", key="k", limit=10)
    owned = replace(plain, tenant="acme")
    lines = [line(plain, 2.0), line(owned, 1.0 if tenant_first else 3.0)]
    supply = Supply(resources={"stripe": 10}, room={"default": 6})
    granted = share_out(lines, supply, FairShares(), {})
    expected = {owned.text: 6, plain.text: 4} if tenant_first else {plain.text: 10}
    assert granted == expected


def test_a_line_that_shares_nothing_takes_no_turn_from_tenants() -> None:
    free = Gates(queue="default", key="k", limit=3)
    owned = Gates(queue="default", tenant="acme", resources=("stripe",))
    supply = Supply(resources={"stripe": 1}, room={"default": 6})
    granted = share_out([line(free, 1.0), line(owned, 2.0)], supply, FairShares(), {})
    assert granted == {free.text: 3, owned.text: 1}
