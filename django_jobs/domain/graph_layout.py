"""Positions for the picture of a graph: layers from top to bottom, few crossings, straight lines.

The method of Sugiyama, Tagawa and Toda (1981): a layer for each node by the longest path to it, an
order in each layer by the mean position of neighbours, and coordinates as near to those of the
neighbours as the widths allow. An edge that passes a layer has a place there, which all long edges
of its parent share. So the number of places is bounded by the nodes times the layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Key = Hashable
Edge = tuple[Key, Key]
"""Parent and child."""
Place = tuple[Key, int]
"""A node in its layer, or in a lower one the long edges that leave it."""

SWEEPS = 4
"""Each goes down and up again. More of them hardly change a graph of 60 nodes."""
STRAIGHTNESS = 4.0
"""How much more than a node a long edge pulls to the middle of its neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Sizes in pixels. A ``lane`` is the width of a long edge in a layer that it passes."""

    width: int = 190
    height: int = 62
    gap: int = 22
    layer_gap: int = 48
    lane: int = 14
    margin: int = 12


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The top left corner of each node, and the points of each edge from parent to child."""

    width: float
    height: float
    nodes: dict[Key, Point]
    edges: dict[Edge, list[Point]]


def layers(nodes: Collection[Key], edges: Iterable[Edge]) -> dict[Key, int]:
    """The number of edges on the longest path that ends at each node. Parents come before their
    children. Raises ``ValueError`` if there is a circle."""
    children: dict[Key, list[Key]] = {node: [] for node in nodes}
    missing = dict.fromkeys(nodes, 0)
    for parent, child in edges:
        children[parent].append(child)
        missing[child] += 1
    layer = {node: 0 for node in nodes if not missing[node]}
    found = list(layer)
    for node in found:
        for child in children[node]:
            layer[child] = max(layer.get(child, 0), layer[node] + 1)
            missing[child] -= 1
            if not missing[child]:
                found.append(child)
    if len(found) < len(children):
        raise ValueError("the graph has a circle")
    return {node: layer[node] for node in found}


def layout(
    nodes: Collection[Key], edges: Collection[Edge], sizes: Measures | None = None
) -> Layout:
    """Lay out a graph without circles. The same graph in the same order gives the same picture."""
    sizes = sizes or Measures()
    layer = layers(nodes, edges)
    routes = {(parent, child): _route(parent, child, layer) for parent, child in edges}
    rows = _rows(nodes, layer, routes.values())
    near = _neighbours(routes.values())
    _order(rows, near)
    widths = {
        place: sizes.width if place[1] == layer[place[0]] else sizes.lane
        for row in rows
        for place in row
    }
    centres = _centres(rows, near, widths, sizes)
    left = min((centres[place] - width / 2 for place, width in widths.items()), default=0)
    right = max((centres[place] + width / 2 for place, width in widths.items()), default=0)
    pitch = sizes.height + sizes.layer_gap

    def point(place: Place, down: int = 0) -> Point:
        x = centres[place] - left + sizes.margin
        return Point(round(x, 1), sizes.margin + place[1] * pitch + down)

    def corner(node: Key) -> Point:
        top = point((node, layer[node]))
        return Point(round(top.x - sizes.width / 2, 1), top.y)

    return Layout(
        width=round(right - left + 2 * sizes.margin, 1),
        height=max(len(rows) * pitch - sizes.layer_gap, 0) + 2 * sizes.margin,
        nodes={node: corner(node) for node in nodes},
        edges={
            edge: [
                point(route[0], sizes.height),
                *(point(place, down) for place in route[1:-1] for down in (0, sizes.height)),
                point(route[-1]),
            ]
            for edge, route in routes.items()
        },
    )


def _route(parent: Key, child: Key, layer: Mapping[Key, int]) -> list[Place]:
    """The places of an edge, one in each layer."""
    above = [(parent, number) for number in range(layer[parent], layer[child])]
    return [*above, (child, layer[child])]


def _rows(
    nodes: Iterable[Key], layer: Mapping[Key, int], routes: Iterable[list[Place]]
) -> list[list[Place]]:
    """The places of each layer, in the order of the nodes and then of the edges."""
    places = dict.fromkeys((node, layer[node]) for node in nodes)
    places.update(dict.fromkeys(place for route in routes for place in route))
    rows: list[list[Place]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for place in places:
        rows[place[1]].append(place)
    return rows


def _neighbours(routes: Iterable[list[Place]]) -> dict[Place, tuple[list[Place], list[Place]]]:
    """The places above and below each place that it has an edge with."""
    segments = dict.fromkeys(pair for route in routes for pair in pairwise(route))
    near: dict[Place, tuple[list[Place], list[Place]]] = {}
    for upper, lower in segments:
        near.setdefault(lower, ([], []))[0].append(upper)
        near.setdefault(upper, ([], []))[1].append(lower)
    return near


def _order(rows: list[list[Place]], near: Mapping[Place, tuple[list[Place], list[Place]]]) -> None:
    """Sort each layer by the mean position of the neighbours above, then below."""
    position = {place: float(at) for row in rows for at, place in enumerate(row)}
    for _ in range(SWEEPS):
        for side, sequence in ((0, rows[1:]), (1, rows[-2::-1])):
            for row in sequence:
                wanted = {place: _mean(place, position, near, (side,)) for place in row}
                row.sort(key=lambda place: wanted[place])
                position.update((place, float(at)) for at, place in enumerate(row))


def _centres(
    rows: list[list[Place]],
    near: Mapping[Place, tuple[list[Place], list[Place]]],
    widths: Mapping[Place, int],
    sizes: Measures,
) -> dict[Place, float]:
    """The x of each place: near to the mean of its neighbours, and apart from its row."""
    centres: dict[Place, float] = {}
    for row in rows:
        centres.update(zip(row, _separated([0.0] * len(row), row, widths, sizes.gap), strict=True))
    down, up, both = ((0,), rows[1:]), ((1,), rows[-2::-1]), ((0, 1), rows)
    for sides, sequence in (*(down, up) * SWEEPS, both):
        for row in sequence:
            wanted = [_mean(place, centres, near, sides) for place in row]
            centres.update(zip(row, _separated(wanted, row, widths, sizes.gap), strict=True))
    return centres


def _mean(
    place: Place,
    position: Mapping[Place, float],
    near: Mapping[Place, tuple[list[Place], list[Place]]],
    sides: tuple[int, ...],
) -> float:
    """The mean position of the neighbours of a place, or its present one if there are none."""
    sums = near.get(place, ([], []))
    found = [position[one] for side in sides for one in sums[side]]
    return sum(found) / len(found) if found else position[place]


def _separated(
    wanted: Sequence[float], row: Sequence[Place], widths: Mapping[Place, int], gap: int
) -> list[float]:
    """The positions nearest to the wanted ones, by least squares, in this order and with a gap.

    After the offset of each place is subtracted, the positions only have to ascend: neighbours that
    do not are pooled into their weighted mean (isotonic regression)."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (widths[left] + widths[right]) / 2 + gap)
    most = max((widths[place] for place in row), default=0)
    pools: list[tuple[float, float, int]] = []  # weighted sum, weight, places
    for place, want, offset in zip(row, wanted, offsets, strict=True):
        weight = 1.0 if widths[place] == most else STRAIGHTNESS
        pools.append(((want - offset) * weight, weight, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            last, before = pools.pop(), pools.pop()
            pools.append((last[0] + before[0], last[1] + before[1], last[2] + before[2]))
    levels = [total / weight for total, weight, places in pools for _ in range(places)]
    return [level + offset for level, offset in zip(levels, offsets, strict=True)]


MOST_NODES = 60
"""Of a picture. Nobody reads one of more, and its layout takes longer."""
WIDEST = 6
"""Nodes in a layer: about as many as a screen shows."""
FEWEST = 3
"""Alike steps that fold. Two are shown as two, with their names."""

Group = tuple[Key, ...]
Signature = Mapping[Key, Hashable]
"""Steps of one layer with the same value fold."""
Relatives = Mapping[Key, frozenset[Key]]


def folded(kinds: Mapping[Key, str], edges: Collection[Edge]) -> list[Group]:
    """The groups that the picture shows as a node each: at most ``MOST_NODES``.

    ``kinds`` gives the kind of each step, such as its job type. In a small graph each step is a
    group. Otherwise steps of one kind fold if they have the same parents and children; if that
    leaves too many, if their ancestors and descendants are alike, as in 500 equal chains; then if
    they are in one layer; and at last, whole layers fold. So there is no circle of groups.

    Raises ``ValueError`` if the graph has a circle.
    """
    layer = layers(kinds, edges)
    parents, children = _relatives(kinds, edges)
    nearest = {step: (kind, parents[step], children[step]) for step, kind in kinds.items()}
    alike = _alike(kinds, layer, parents, children)
    for signature, fewest in ((nearest, len(kinds) + 1), (nearest, FEWEST), (alike, FEWEST)):
        groups = _groups(layer, signature, fewest)
        if len(groups) <= MOST_NODES and _width(groups, layer) <= WIDEST:
            return groups
    groups = _groups(layer, kinds, 1)
    if len(groups) <= MOST_NODES:
        return groups
    thickness = -(-(max(layer.values()) + 1) // MOST_NODES)
    bands = {step: number // thickness for step, number in layer.items()}
    return _groups(bands, bands, 1)


def _groups(layer: Mapping[Key, int], signature: Signature, fewest: int) -> list[Group]:
    """Steps of one layer and signature together, if they are at least ``fewest``."""
    together: dict[Hashable, list[Key]] = {}
    for step, number in layer.items():
        together.setdefault((number, signature[step]), []).append(step)
    groups: list[Group] = []
    for steps in together.values():
        groups += [tuple(steps)] if len(steps) >= fewest else [(step,) for step in steps]
    return groups


def _width(groups: list[Group], layer: Mapping[Key, int]) -> int:
    return max(Counter(layer[group[0]] for group in groups).values(), default=0)


def _alike(
    kinds: Mapping[Key, str], layer: Mapping[Key, int], parents: Relatives, children: Relatives
) -> Signature:
    """The kinds of the ancestors and of the descendants of each step, each as a number."""
    above: dict[Key, int] = {}
    below: dict[Key, int] = {}
    downwards = list(layer)  # parents come before their children
    for numbers, near, steps in ((above, parents, downwards), (below, children, downwards[::-1])):
        number_of: dict[Hashable, int] = {}
        for step in steps:
            signature = kinds[step], frozenset(numbers[one] for one in near[step])
            numbers[step] = number_of.setdefault(signature, len(number_of))
    return {step: (above[step], below[step]) for step in kinds}


def _relatives(steps: Collection[Key], edges: Collection[Edge]) -> tuple[Relatives, Relatives]:
    parents: dict[Key, set[Key]] = {step: set() for step in steps}
    children: dict[Key, set[Key]] = {step: set() for step in steps}
    for parent, child in edges:
        parents[child].add(parent)
        children[parent].add(child)
    return (
        {step: frozenset(near) for step, near in parents.items()},
        {step: frozenset(near) for step, near in children.items()},
    )
