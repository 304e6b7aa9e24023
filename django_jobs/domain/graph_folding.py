"""Folds the steps of a large graph into groups, so that its picture has few nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping

from .graph_layout import Edge, Key, layers

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
    """The number of groups in the widest layer."""
    return max(Counter(layer[group[0]] for group in groups).values(), default=0)


def _alike(
    kinds: Mapping[Key, str], layer: Mapping[Key, int], parents: Relatives, children: Relatives
) -> Signature:
    """The kinds of the ancestors and of the descendants of each step, each as a number."""
    above: dict[Key, int] = {}
    below: dict[Key, int] = {}
    downwards = list(layer)  # parents come before their children
    for numbers, near, steps in (
        (above, parents, downwards),
        (below, children, downwards[::-1]),
    ):
        number_of: dict[Hashable, int] = {}
        for step in steps:
            signature = kinds[step], frozenset(numbers[one] for one in near[step])
            numbers[step] = number_of.setdefault(signature, len(number_of))
    return {step: (above[step], below[step]) for step in kinds}


def _relatives(steps: Collection[Key], edges: Collection[Edge]) -> tuple[Relatives, Relatives]:
    """The parents and the children of each step."""
    parents: dict[Key, set[Key]] = {step: set() for step in steps}
    children: dict[Key, set[Key]] = {step: set() for step in steps}
    for parent, child in edges:
        parents[child].add(parent)
        children[parent].add(child)
    return (
        {step: frozenset(near) for step, near in parents.items()},
        {step: frozenset(near) for step, near in children.items()},
    )
