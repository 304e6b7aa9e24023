"""Counts that stop counting."""

from __future__ import annotations

from typing import Any

from django.db.models import IntegerField, QuerySet, Subquery

MOST_COUNTED = 1_000


class CappedCount(Subquery):
    """How many rows a subquery finds, up to one more than ``MOST_COUNTED``."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"

    def __init__(self, rows: QuerySet[Any]) -> None:
        super().__init__(
            rows.order_by().values("pk")[: MOST_COUNTED + 1], output_field=IntegerField()
        )


def counted(number: int) -> str:
    """``12``, or ``1,000+`` where counting stopped."""
    return f"{MOST_COUNTED:,}+" if number > MOST_COUNTED else f"{number:,}"
