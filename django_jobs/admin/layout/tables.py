"""Tables as ``table.html`` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise


@dataclass(frozen=True, slots=True)
class Column:
    """A column. One of numbers is aligned to the right. One that is ``wide`` is left out where
    there is little room."""

    label: _StrOrPromise
    number: bool = False
    wide: bool = False

    @property
    def css(self) -> str:
        classes = ("jobs-number" if self.number else "", "jobs-wide" if self.wide else "")
        return " ".join(filter(None, classes))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under headings. The first cell of a row is its heading."""

    title: _StrOrPromise
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    empty: _StrOrPromise
    """What stands in place of a table without rows."""
    more: tuple[_StrOrPromise, str] | None = None
    """A link to the page with all of them: its text and its address."""
    groups: Sequence[tuple[_StrOrPromise, int]] = field(default=())
    """Headings above the columns, each with how many columns it spans."""
    note: _StrOrPromise = ""
    """What stands below the rows."""

    @property
    def cells(self) -> list[list[tuple[str, Column]]]:
        """The rows, each cell with its column."""
        return [list(zip(row, self.columns, strict=True)) for row in self.rows]
