"""The graph as SVG."""

from __future__ import annotations

import pytest

from django_jobs.admin.workflows.drawing import (
    TIMES,
    Line,
    Node,
    cut_after_a_word,
    draw,
    shortened,
)


@pytest.mark.parametrize(
    "text, most, short",
    [
        ("ship", 4, "ship"),
        ("shipping", 5, "sh…ng"),
        ("shipping", 6, "shi…ng"),
        ("日本語の手順", 12, "日本語の手順"),
        ("日本語の手順", 9, "日本…手順"),
        ("shipping日本語", 9, "shi…本語"),
        ("日本語shipping", 9, "日本語…ng"),
        ("", 3, ""),
    ],
)
def test_a_long_name_is_cut_in_its_middle(text: str, most: int, short: str) -> None:
    assert shortened(text, most) == short


def test_the_whole_name_is_in_the_title() -> None:
    name = "announce " * 10
    (drawn,) = draw([Node(name=name, state="ready", lines=["ready", "#1"])], []).nodes
    assert drawn["title"] == f"{name}\nready\n#1"
    assert len(drawn["name"]) < len(name)


def test_the_number_of_folded_steps_is_never_cut() -> None:
    node = Node(name="announce " * 10, state="ready", lines=["500 ready"], size=12_500)
    assert draw([node], []).nodes[0]["name"].endswith(f" {TIMES} 12,500")


def test_the_bar_of_a_folded_node_shows_the_share_of_each_state() -> None:
    node = Node(name="a", state="dead", lines=[], size=4, shares=[("dead", 1), ("succeeded", 3)])
    assert draw([node], []).nodes[0]["bar"] == [("dead", "12", "50"), ("succeeded", "62", "150")]


def test_a_line_passes_the_layers_between_straight_down() -> None:
    nodes = [Node(name=name, state="ready", lines=[]) for name in "abc"]
    lines = [Line(parent=0, child=1), Line(parent=1, child=2), Line(parent=0, child=2)]
    paths = [drawn["path"] for drawn in draw(nodes, lines).lines]
    assert ["V" in path for path in paths] == [False, False, True]
    assert all(path.startswith("M") and "e" not in path for path in paths)


def test_what_is_met_is_drawn_over_what_is_broken() -> None:
    nodes = [Node(name=name, state="ready", lines=[]) for name in "abc"]
    lines = [Line(parent=0, child=1, state="met"), Line(parent=0, child=2, state="broken")]
    assert [drawn["state"] for drawn in draw(nodes, lines).lines] == ["broken", "met"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a step before it failed · #12", "a step before it failed · #12"),
        ("a step before it failed · #216966", "a step before it failed…"),
        ("ein Schritt davor ist fehlgeschlagen", "ein Schritt davor ist…"),
        ("waits_for_a_person_of_the_accounting", "waits_for_a_pe…the_accounting"),
    ],
)
def test_a_line_is_cut_after_a_word(text: str, shown: str) -> None:
    assert cut_after_a_word(text, 29) == shown
