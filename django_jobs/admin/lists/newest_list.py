"""Lists of a table without an index for their filters, which search its newest rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin import SimpleListFilter
from django.db.models import Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ...conf import conf
from ...separators import number_text
from .change_list import ConsoleList
from .filters import SinceFilter

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

NEWEST = 100_000
"""Rows of a part that a list reads without an index: 20 ms if they are small and cached."""


class Searched(NamedTuple):
    """The rows of which a list searches the newest, by ``column``, as an index has them."""

    rows: Q
    column: str
    name: _StrOrPromise


class NewestList(ConsoleList):
    """A list that says so if it did not search all rows. An action on all that match reads the
    same rows."""

    def searched(self, request: HttpRequest, chosen: Mapping[str, str]) -> Searched | None:
        """What is searched for these choices of filters; None if an index finds the rows."""
        raise NotImplementedError

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        specs = [one for one in self.filter_specs if isinstance(one, SimpleListFilter)]
        chosen = {str(one.parameter_name): value for one in specs if (value := one.value())}
        part = self.searched(request, chosen)
        if part is None:
            return rows
        everything = self.model._default_manager.using(conf().database).filter(part.rows)
        newest = everything.order_by(f"-{part.column}").values(part.column)
        next_row = everything.filter(**{part.column: Subquery(newest[NEWEST : NEWEST + 1])})
        end = next_row.values_list(part.column, flat=True).first()
        if end is None:
            return rows
        if not self._is_too_old(request, everything.filter(**{part.column: end})):
            note = _("Only the newest %(number)s %(name)s were searched.")
            self.left_out = [note % {"number": number_text(NEWEST), "name": part.name}]
        return rows.filter(**{f"{part.column}__gt": end})

    def _is_too_old(self, request: HttpRequest, next_row: QuerySet[Any]) -> bool:
        """Whether a chosen age leaves out the row that follows the newest, and so those before it:
        ids follow the time at which a row was created."""
        ages = [one for one in self.filter_specs if isinstance(one, SinceFilter) and one.span]
        return any(not one.queryset(request, next_row).exists() for one in ages)
