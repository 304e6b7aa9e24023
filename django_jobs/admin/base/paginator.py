"""Pagination of tables of any size."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator

from ...separators import number_text

if TYPE_CHECKING:
    BasePaginator = Paginator[Any]
else:
    BasePaginator = Paginator


from typing import Any

from django.db.models import IntegerField, QuerySet, Subquery


class CappedPaginator(BasePaginator):
    """Counts and pages at most ``cap`` rows: a full count of a large table takes seconds."""

    cap = 10_000

    @cached_property
    def _capped_count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: self.cap + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._capped_count, self.cap)

    @property
    def capped(self) -> bool:
        """Whether there are more rows than ``cap``."""
        return self._capped_count > self.cap


MOST_COUNTED = 1_000


class CappedCount(Subquery):
    """The number of rows of a subquery, up to ``MOST_COUNTED + 1``."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"

    def __init__(self, rows: QuerySet[Any]) -> None:
        super().__init__(
            rows.order_by().values("pk")[: MOST_COUNTED + 1], output_field=IntegerField()
        )


def counted(number: int) -> str:
    """``12``, or ``1,000+`` if there are more."""
    return number_text(min(number, MOST_COUNTED), more=number > MOST_COUNTED)
