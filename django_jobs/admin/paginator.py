"""Pages over a table of any size."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator

if TYPE_CHECKING:
    BasePaginator = Paginator[Any]
else:
    BasePaginator = Paginator


class CappedPaginator(BasePaginator):
    """Counts and pages at most ``cap`` rows: a full count of a large table takes seconds."""

    cap = 10_000

    @cached_property
    def _found(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: self.cap + 1].count())

    @cached_property
    def count(self) -> int:
        """The rows that can be paged through: all of them, or ``cap``."""
        return min(self._found, self.cap)

    @property
    def capped(self) -> bool:
        """Whether there are more rows than can be paged through."""
        return self._found > self.cap
