"""The positions of the nodes and edges of a picture."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from django_jobs.domain.graph_layout import Layout, Measures, Point, layers, layout

from .graphs import Graph, chains, fan, graphs

SIZES = Measures()


def overlapping(picture: Layout) -> list[tuple[object, object]]:
    corners = list(picture.nodes.items())
    return [
        (one, other)
        for at, (one, here) in enumerate(corners)
        for other, there in corners[at + 1 :]
        if abs(here.x - there.x) < SIZES.width and abs(here.y - there.y) < SIZES.height
    ]


@given(graph=graphs())
def test_no_two_nodes_overlap(graph: Graph) -> None:
    picture = layout(graph.kinds, graph.edges)
    assert picture.nodes.keys() == graph.kinds.keys()
    assert not overlapping(picture)


@given(graph=graphs())
def test_each_edge_goes_down_from_its_parent_to_its_child(graph: Graph) -> None:
    picture = layout(graph.kinds, graph.edges)
    assert picture.edges.keys() == set(graph.edges)
    for (parent, child), points in picture.edges.items():
        above, below = picture.nodes[parent], picture.nodes[child]
        half = SIZES.width / 2
        assert points[0].x == pytest.approx(above.x + half, abs=0.2)
        assert points[0].y == above.y + SIZES.height
        assert points[-1].x == pytest.approx(below.x + half, abs=0.2)
        assert points[-1].y == below.y
        assert all(upper.y < lower.y for upper, lower in pairwise(points))


@given(graph=graphs())
def test_a_long_edge_passes_no_node(graph: Graph) -> None:
    picture = layout(graph.kinds, graph.edges)
    for points in picture.edges.values():
        for point in points[1:-1]:
            assert not [
                node
                for node, corner in picture.nodes.items()
                if corner.x <= point.x <= corner.x + SIZES.width
                and corner.y <= point.y <= corner.y + SIZES.height
            ]


@given(graph=graphs())
def test_the_picture_contains_everything_and_its_margin(graph: Graph) -> None:
    picture = layout(graph.kinds, graph.edges)
    corners = [Point(at.x + SIZES.width, at.y + SIZES.height) for at in picture.nodes.values()]
    corners += picture.nodes.values()
    corners += [point for points in picture.edges.values() for point in points]
    for corner in corners:
        assert SIZES.margin - 0.2 <= corner.x <= picture.width - SIZES.margin + 0.2
        assert SIZES.margin <= corner.y <= picture.height - SIZES.margin


@given(graph=graphs())
def test_the_same_graph_gives_the_same_picture(graph: Graph) -> None:
    assert layout(graph.kinds, graph.edges) == layout(dict(graph.kinds), list(graph.edges))


def test_the_steps_of_a_chain_are_below_each_other() -> None:
    picture = layout(*chains(1, 5))
    assert len({corner.x for corner in picture.nodes.values()}) == 1
    assert len({corner.y for corner in picture.nodes.values()}) == 5


def test_a_fan_is_symmetrical() -> None:
    picture = layout(*fan(4))
    assert picture.nodes["begin"].x == picture.nodes["end"].x
    assert picture.nodes["begin"].x == pytest.approx((picture.width - SIZES.width) / 2, abs=0.2)


def test_two_chains_side_by_side_do_not_cross() -> None:
    # Their steps are given in opposite orders.
    picture = layout(["a", "b", "b2", "a2"], [("a", "a2"), ("b", "b2")])
    assert picture.nodes["a"].x == picture.nodes["a2"].x


def test_the_layer_of_a_step_is_below_all_of_its_parents() -> None:
    assert layers("abcd", [("a", "b"), ("b", "c"), ("a", "c")]) == {"a": 0, "d": 0, "b": 1, "c": 2}


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        layout("abc", [("a", "b"), ("b", "c"), ("c", "b")])


def test_a_graph_without_steps_is_an_empty_picture() -> None:
    picture = layout([], [])
    assert picture.nodes == {}
    assert (picture.width, picture.height) == (2 * SIZES.margin, 2 * SIZES.margin)
