"""The groups of steps that the picture of a large graph shows as one node."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given

from django_jobs.domain.graph_layout import MOST_NODES, Edge, Key, folded, layers, layout
from tests.calls import calls_of

from .graphs import Graph, chains, fan, graphs


def edges_between(groups: list[tuple[Key, ...]], edges: list[Edge]) -> list[Edge]:
    group_of = {step: at for at, group in enumerate(groups) for step in group}
    pairs = [(group_of[parent], group_of[child]) for parent, child in edges]
    return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


@given(graph=graphs(most=30))
def test_each_step_is_in_one_group(graph: Graph) -> None:
    groups = folded(*graph)
    assert sorted(step for group in groups for step in group) == sorted(graph.kinds)


@given(graph=graphs(most=30))
def test_the_groups_form_no_circle(graph: Graph) -> None:
    groups = folded(*graph)
    assert len(layers(range(len(groups)), edges_between(groups, graph.edges))) == len(groups)


@pytest.mark.parametrize("graph", [fan(3), fan(6), chains(1, 30), chains(6, 5)])
def test_a_small_graph_is_shown_step_by_step(graph: Graph) -> None:
    assert all(len(group) == 1 for group in folded(*graph))


def test_alike_steps_between_the_same_neighbours_fold() -> None:
    assert sorted(map(len, folded(*fan(500)))) == [1, 1, 500]


def test_a_pair_keeps_its_names_where_others_fold() -> None:
    graph = fan(500)
    for one in ("mail the seller", "mail the buyer"):
        graph.kinds[one] = "mail"
        graph.edges.append(("end", one))
    groups = folded(*graph)
    assert ("mail the seller",) in groups
    assert sorted(map(len, groups)) == [1, 1, 1, 1, 500]


def test_steps_of_different_kinds_do_not_fold() -> None:
    graph = fan(500)
    graph.kinds.update((f"part {number}", "crop") for number in range(100))
    assert sorted(map(len, folded(*graph))) == [1, 1, 100, 400]


def test_equal_chains_fold_step_by_step() -> None:
    groups = folded(*chains(500, 3))
    assert [len(group) for group in groups] == [500, 500, 500]
    assert [group[0][1] for group in groups if isinstance(group[0], tuple)] == [0, 1, 2]


def test_a_long_chain_folds_into_parts_of_it() -> None:
    groups = folded(*chains(1, 500))
    assert len(groups) <= MOST_NODES
    assert max(map(len, groups)) == 9


def random_graph(steps: int, kinds: int) -> Graph:
    """Edges from each step to three of the next hundred."""
    draw = random.Random(13)
    edges: set[Edge] = set()
    for step in range(steps - 1):
        edges.update((step, draw.randint(step + 1, min(step + 100, steps - 1))) for _ in range(3))
    return Graph({step: f"kind {draw.randrange(kinds)}" for step in range(steps)}, sorted(edges))


@pytest.mark.parametrize(
    "made",
    [
        fan,
        lambda steps: chains(1, steps),
        lambda steps: chains(steps // 4, 4),
        lambda steps: random_graph(steps, 5),
        lambda steps: random_graph(steps, steps // 2),
    ],
    ids=["fan", "chain", "chains", "five kinds", "many kinds"],
)
def test_a_graph_of_ten_times_the_steps_takes_about_ten_times_the_work(
    made: Callable[[int], Graph],
) -> None:
    """10,000 steps are 500,000 calls at most, a fifth of a second."""

    def lay_out(graph: Graph) -> None:
        groups = folded(*graph)
        picture = layout(range(len(groups)), edges_between(groups, graph.edges))
        assert len(picture.nodes) == len(groups) <= MOST_NODES

    small, large = made(1_000), made(10_000)
    assert calls_of(lambda: lay_out(large)) < 20 * calls_of(lambda: lay_out(small))
