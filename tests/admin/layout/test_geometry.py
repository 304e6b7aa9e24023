"""The geometry of charts."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from django_jobs.admin.layout.charts import THINNEST, line, stacked_bars

COUNTS = st.floats(0, 1e9, allow_nan=False)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
ORDER = ("succeeded", "failed", "lost")


def points(path: str) -> list[tuple[float, float]]:
    """The coordinates of a path, without those of points that stand alone."""
    numbers = [float(number) for number in NUMBER.findall(path.replace("h0", ""))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@given(st.lists(st.none() | COUNTS, max_size=120))
def test_a_line_stays_in_its_picture_and_goes_to_the_right(values: list[float | None]) -> None:
    drawn = line(values, width=120, height=24)
    xs = [x for x, _ in points(drawn.line)]
    assert all(0 <= x <= 120 and 0 <= y <= 24 for x, y in points(drawn.line + drawn.area))
    assert xs == sorted(xs)
    assert len(xs) == sum(value is not None for value in values)


@given(st.lists(COUNTS, min_size=2, max_size=60))
def test_a_larger_value_is_never_lower(values: list[float]) -> None:
    ys = [y for _, y in points(line(values).line)]
    by_value = [y for _, y in sorted(zip(values, ys, strict=True), key=lambda pair: pair[0])]
    assert by_value == sorted(by_value, reverse=True)
    assert min(ys) == (1 if max(values) else 23)


def test_an_unknown_value_is_a_gap() -> None:
    drawn = line([1, 2, None, 3, None, 4, 4], width=60, height=22)
    assert drawn.line == "M0 16L10 11M30 6h0M50 1L60 1"
    assert drawn.area == "M0 22L0 16L10 11L10 22zM50 22L50 1L60 1L60 22z"


def test_nothing_but_zeros_is_a_line_at_the_bottom() -> None:
    assert line([0, 0, 0], width=60, height=22).line == "M0 21L30 21L60 21"


def test_no_values_draw_nothing() -> None:
    assert (line([]).line, line([None]).area) == ("", "")
    assert stacked_bars([], ORDER).columns == []


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(ORDER, COUNTS)), max_size=60))
def test_bars_stand_on_one_another_and_fill_no_more_than_the_picture(
    columns: list[dict[str, float]],
) -> None:
    drawn = stacked_bars(columns, ORDER)
    assert len(drawn.columns) == len(columns)
    for values, bars in zip(columns, drawn.columns, strict=True):
        assert [bar.name for bar in bars] == [name for name in ORDER if values.get(name, 0) > 0]
        bottom = 150.0
        for bar in bars:
            assert 0 <= float(bar.x) <= float(bar.x) + float(bar.width) <= 1200.01
            assert float(bar.height) >= THINNEST
            assert abs(float(bar.y) + float(bar.height) - bottom) < 0.02
            bottom = float(bar.y)
        assert bottom >= -0.02


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60))
def test_the_largest_column_has_the_whole_height(totals: list[int]) -> None:
    drawn = stacked_bars([{"succeeded": total} for total in totals], ORDER)
    heights = [float(column[0].height) for column in drawn.columns]
    assert heights[totals.index(max(totals))] == max(heights) == 150
    assert drawn.top == max(totals)


def test_one_failure_among_thousands_is_seen() -> None:
    (column,) = stacked_bars([{"succeeded": 9_999, "failed": 1}], ORDER).columns
    assert [(bar.name, bar.y, bar.height) for bar in column] == [
        ("succeeded", "1", "149"),
        ("failed", "0", "1"),
    ]
