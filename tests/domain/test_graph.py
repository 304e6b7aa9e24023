"""The order of steps, what is upstream, and the difference of two graphs."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.graph import (
    Circle,
    Difference,
    GraphStep,
    StepKind,
    ancestors,
    difference,
    document_of,
    fingerprint,
    topological_order,
)
from django_jobs.domain.workflows import When

NAMES = [f"step {number}" for number in range(8)]


@st.composite
def any_parents(draw: st.DrawFn) -> dict[str, list[str]]:
    """Names with parents, with or without a circle."""
    names = draw(st.permutations(NAMES))
    chosen = st.lists(st.sampled_from(NAMES), unique=True, max_size=3)
    return {name: draw(chosen) for name in names}


@st.composite
def graphs(draw: st.DrawFn) -> list[GraphStep]:
    """Steps without a circle, in any order."""
    steps = []
    for at, name in enumerate(draw(st.permutations(NAMES))):
        earlier = [step.name for step in steps]
        parents = draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
        step = GraphStep(
            name=name,
            job_type=f"app.{draw(st.sampled_from('abc'))}",
            kind=draw(st.sampled_from(StepKind)),
            after={parent: draw(st.sampled_from(When)) for parent in parents},
            takes={f"argument_{at}": parents[0]} if parents and draw(st.booleans()) else {},
            compensate=draw(st.none() | st.just("app.undo")),
        )
        steps.append(step)
    return draw(st.permutations(steps))


@given(any_parents())
def test_each_name_follows_its_parents_unless_there_is_a_circle(
    parents: dict[str, list[str]],
) -> None:
    upstream = {name: ancestors(parents[name], lambda one: parents[one]) for name in parents}
    has_circle = any(name in upstream[name] for name in parents)
    try:
        order = topological_order(parents)
    except Circle as circle:
        assert has_circle
        path = circle.path
        assert path[0] == path[-1]
        assert len(set(path)) == len(path) - 1
        assert all(parent in parents[child] for parent, child in pairwise(path))
    else:
        assert not has_circle
        assert sorted(order) == sorted(parents)
        places = {name: at for at, name in enumerate(order)}
        assert all(places[one] < places[name] for name in parents for one in parents[name])


@given(any_parents())
def test_what_is_upstream_has_no_parent_outside(parents: dict[str, list[str]]) -> None:
    for name in parents:
        found = ancestors(parents[name], lambda one: parents[one])
        assert found >= set(parents[name])
        assert found == set(parents[name]).union(
            *(ancestors(parents[one], lambda one: parents[one]) for one in parents[name])
        )


@given(graphs())
def test_an_order_that_is_right_is_kept(steps: list[GraphStep]) -> None:
    parents = {step.name: step.after for step in steps}
    order = topological_order(parents)
    assert topological_order({name: parents[name] for name in order}) == order


@given(graphs(), st.randoms())
def test_the_order_of_declarations_does_not_change_a_fingerprint(
    steps: list[GraphStep], chance: random.Random
) -> None:
    shuffled = list(steps)
    chance.shuffle(shuffled)
    assert fingerprint(document_of(steps)) == fingerprint(document_of(shuffled))
    assert not difference(document_of(steps), document_of(shuffled))


@given(graphs(), graphs())
def test_graphs_differ_if_their_fingerprints_do(old: list[GraphStep], new: list[GraphStep]) -> None:
    one, other = document_of(old), document_of(new)
    equal = fingerprint(one) == fingerprint(other)
    assert bool(difference(one, other)) is not equal


def test_a_difference_names_the_steps_and_what_changed() -> None:
    reserve = GraphStep(name="reserve", job_type="app.reserve")
    charge = GraphStep(name="charge", job_type="app.charge", after={"reserve": When.SUCCEEDED})
    charge_after_failure = GraphStep(
        name="charge",
        job_type="app.charge",
        after={"reserve": When.FAILED},
        details={"timeout": None},
    )
    pay = GraphStep(name="pay", job_type="app.pay")
    ship = GraphStep(name="ship", job_type="app.ship")
    old = document_of([reserve, charge, pay])
    found = difference(old, document_of([reserve, charge_after_failure, ship]))
    assert found == Difference(("ship",), ("pay",), {"charge": ("after", "timeout")})
    assert str(found) == "added: ship; removed: pay; changed: charge (after, timeout)"
    assert not str(Difference())
    found = difference(old, {**old, "on_failure": "cancel"})
    assert (found, str(found)) == (Difference(options=("on_failure",)), "changed: on_failure")


def test_a_graph_is_json_in_order() -> None:
    charge = GraphStep(
        name="charge",
        job_type="app.charge",
        after={"approval": When.FINISHED},
        takes={"ok": "approval"},
        compensate="app.refund",
    )
    approval = GraphStep(
        name="approval", job_type="wait", kind=StepKind.WAIT, details={"timeout": 60.0}
    )
    assert document_of([charge, approval]) == {
        "steps": [
            {
                "name": "approval",
                "job_type": "wait",
                "kind": "wait",
                "after": {},
                "takes": {},
                "compensate": None,
                "timeout": 60.0,
            },
            {
                "name": "charge",
                "job_type": "app.charge",
                "kind": "job",
                "after": {"approval": "finished"},
                "takes": {"ok": "approval"},
                "compensate": "app.refund",
            },
        ]
    }


def test_a_circle_is_named_in_the_direction_of_its_edges() -> None:
    parents = {"first": [], "a": ["c", "first"], "b": ["a"], "c": ["b"], "last": ["c"]}
    with pytest.raises(Circle, match=r"in a circle: a -> b -> c -> a$"):
        topological_order(parents)
    with pytest.raises(Circle, match=r"in a circle: a -> a$"):
        topological_order({"a": ["a"]})


def test_a_long_chain_needs_no_recursion() -> None:
    names = [str(number) for number in range(20_000)]
    parents = {name: names[at - 1 : at] if at else [] for at, name in enumerate(names)}
    assert topological_order(dict(reversed(parents.items()))) == names
    assert len(ancestors([names[-1]], parents.__getitem__)) == 20_000
