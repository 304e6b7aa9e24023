"""Draws a graph as SVG: what the template needs, as text.

The colours are in the style sheet, by the state of a node. Each state has a sign and a word too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import east_asian_width

from django.utils.translation import gettext as _

from ...domain.graph_layout import Key, Measures, Point, layout
from ...separators import number_text
from ..base.formatting import ICONS
from ..layout.tables import Column, Table

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

T = TypeVar("T")
TIMES = "\u00d7"
SIZES = Measures(width=224, height=70, gap=20, layer_gap=46)
LONGEST_NAME = 22
"""Characters of the name of a node. Its whole name is in its title, and in the table below."""
LONGEST_LINE = 29
BAR = SIZES.width - 24
"""The length of the bar that shows the states of a folded node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A step or several. ``size`` is the number of steps; ``shares`` how many are in each state, if
    they were folded. Only the first two ``lines`` are drawn."""

    name: str
    state: str
    lines: Sequence[str]
    url: str = ""
    size: int = 1
    shares: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An edge between two nodes, by their places. ``state`` is ``open``, ``met`` or ``broken``."""

    parent: int
    child: int
    label: str = ""
    state: str = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    width: str
    height: str
    nodes: Sequence[dict[str, Any]]
    lines: Sequence[dict[str, str]]
    sizes: Measures = SIZES
    bar_y: int = SIZES.height - 8


def steps_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], about: _StrOrPromise
) -> Table:
    """The table below a picture, with the same facts."""
    css = "jobs-timeline jobs-steps"
    return Table(_("Steps"), columns, rows, about=about, css=css, id="jobs-steps")


def between(
    groups: Sequence[tuple[Key, ...]], edges: Iterable[tuple[Key, Key, T]]
) -> dict[tuple[int, int], list[T]]:
    """The edges by the places of the groups that they connect. Those within one are not drawn."""
    place = {key: at for at, group in enumerate(groups) for key in group}
    found: dict[tuple[int, int], list[T]] = {}
    for parent, child, edge in edges:
        if place[parent] != place[child]:
            found.setdefault((place[parent], place[child]), []).append(edge)
    return found


def draw(nodes: Sequence[Node], lines: Sequence[Line]) -> Drawing:
    """The picture of a graph. Raises ``ValueError`` if it has a circle."""
    picture = layout(range(len(nodes)), [(line.parent, line.child) for line in lines], SIZES)
    return Drawing(
        width=_number(picture.width),
        height=_number(picture.height),
        nodes=[_node(node, picture.nodes[at]) for at, node in enumerate(nodes)],
        # Broken ones first: what is met is drawn over them where they share a lane.
        lines=[
            _line(line, picture.edges[line.parent, line.child])
            for line in sorted(lines, key=lambda line: line.state != "broken")
        ],
    )


def cut_after_a_word(text: str, most: int) -> str:
    """``text`` cut behind its last word that fits; in its middle, if it has wide letters."""
    short = shortened(text, most)
    words = text[:most].rpartition(" ")[0].rstrip(" ·")
    return f"{words}…" if words and len(short) == most and short != text else short


def shortened(text: str, most: int) -> str:
    """``text`` cut in its middle to a width: an ideograph is as wide as two letters."""
    widths = [2 if east_asian_width(letter) in "WF" else 1 for letter in text]
    if sum(widths) <= most:
        return text
    head = tail = 0
    room = most - 1
    while True:
        from_head = head <= tail
        width = widths[head] if from_head else widths[-1 - tail]
        if width > room:
            return f"{text[:head]}…{text[len(text) - tail :]}"
        room -= width
        head, tail = head + from_head, tail + (not from_head)


def _node(node: Node, corner: Point) -> dict[str, Any]:
    """Each of the two ``lines`` has its y, and each part of the ``bar`` its state, x and width."""
    times = f" {TIMES} {number_text(node.size)}" if node.size > 1 else ""
    total = sum(count for _state, count in node.shares)
    bar, left = [], 12.0
    for state, count in node.shares:
        width = BAR * count / total
        bar.append((state, _number(left), _number(width)))
        left += width
    return {
        "node": node,
        "x": _number(corner.x),
        "y": _number(corner.y),
        "icon": ICONS.get(node.state, "?"),
        "name": shortened(node.name, LONGEST_NAME - len(times)) + times,
        "title": "\n".join([node.name + times, *node.lines]),
        "lines": [
            (_number(38 + 16 * at), cut_after_a_word(text, LONGEST_LINE))
            for at, text in enumerate(node.lines[:2])
        ],
        "bar": bar,
    }


def _line(line: Line, points: Sequence[Point]) -> dict[str, Any]:
    """A curve through the points; straight down through the layers that it passes."""
    path = [f"M{_number(points[0].x)} {_number(points[0].y)}"]
    for at, (upper, lower) in enumerate(pairwise(points)):
        if at % 2:
            path.append(f"V{_number(lower.y)}")
            continue
        middle = _number((upper.y + lower.y) / 2)
        path.append(
            f"C{_number(upper.x)} {middle} {_number(lower.x)} {middle}"
            f" {_number(lower.x)} {_number(lower.y)}"
        )
    return {
        "state": line.state,
        "path": "".join(path),
        "label": line.label,
        "x": _number((points[-2].x + points[-1].x) / 2),
        "y": _number((points[-2].y + points[-1].y) / 2 + 4),
    }


def _number(value: float) -> str:
    """Not as the language of the page writes it."""
    return f"{round(value, 1):g}"
