"""Graphs for the tests of the picture: steps by key with their kind, and edges."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from django_jobs.domain.graph_layout import Edge, Key


class Graph(NamedTuple):
    kinds: dict[Key, str]
    edges: list[Edge]


@st.composite
def graphs(draw: st.DrawFn, most: int = 14) -> Graph:
    """Any graph without circles. The order of its steps says nothing about its edges."""
    numbers = draw(st.permutations(range(draw(st.integers(0, most)))))
    pairs = [(a, b) for at, a in enumerate(numbers) for b in numbers[at + 1 :]]
    edges: list[Edge] = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Graph({step: draw(st.sampled_from("ab")) for step in sorted(numbers)}, edges)


def fan(width: int) -> Graph:
    """One step, ``width`` of a kind after it, and one after all of these."""
    parts = [f"part {number}" for number in range(width)]
    kinds = {"begin": "extract", **dict.fromkeys(parts, "resize"), "end": "merge"}
    begin: list[Edge] = [("begin", part) for part in parts]
    return Graph(dict(kinds), [*begin, *((part, "end") for part in parts)])


def chains(number: int, length: int) -> Graph:
    """Chains of steps of different kinds, all alike."""
    keys = [[(one, at) for at in range(length)] for one in range(number)]
    edges = [(a, b) for chain in keys for a, b in pairwise(chain)]
    return Graph({key: f"kind {key[1]}" for chain in keys for key in chain}, list(edges))
