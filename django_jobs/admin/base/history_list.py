"""Lists that reach into the history, and read a bounded part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet, Value
from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...lifecycle.history import PartitionedTable, ends_of_newest, partitions
from ...separators import number_text
from ..lists.change_list import NEWEST, ConsoleList
from ..lists.filters import Choices, ListFilter
from .model_admin import CappedPaginator, ConsoleAdmin

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise


class Part(NamedTuple):
    """Rows of which a list with a filter reads the newest. ``name`` says which they are."""

    rows: Q
    name: _StrOrPromise
    table: str | None = None
    """The newest of this table are read. None: the newest of ``rows``, which an index finds."""


class FoundPaginator(CappedPaginator):
    """Pages through rows that were found, by their ids."""

    found: Sequence[int] = ()

    @property
    def _capped_count(self) -> int:
        return len(self.found)

    def page(self, number: int | str) -> Page[Any]:
        number = self.validate_number(number)
        rows: Any = self.object_list
        ids = self.found[: self.cap][(number - 1) * self.per_page : number * self.per_page]
        return Page(rows.filter(pk__in=ids), number, self)


class PartitionFilter(ListFilter):
    """Rows of one partition, by its first day."""

    title = _("day finished (UTC)")
    parameter_name = "day"
    folded = True
    table: ClassVar[PartitionedTable]

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        now = timezone.now()
        begun = [one for one in partitions(self.table) if one.start <= now]
        self._bounds = {f"{one.start.astimezone(UTC):%Y-%m-%d}": one for one in reversed(begun)}
        return [(day, _label(one.start, one.end)) for day, one in self._bounds.items()]

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        one = self._bounds.get(value)
        if one is None:  # dropped since the page was read
            return rows.none()
        return rows.filter(finished_at__gte=one.start, finished_at__lt=one.end)


def _label(start: datetime, end: datetime) -> str:
    first, last = start.astimezone(UTC), (end - timedelta(days=1)).astimezone(UTC)
    text = date_format(first, "DATE_FORMAT")
    return text if first == last else f"{text} - {date_format(last, 'DATE_FORMAT')}"


class HistoryList(ConsoleList):
    """The newest rows of all come by their ids. For the other columns there is no index, because
    each settle would have to write it: of the parts that the page names the newest rows are read,
    once. Their ids are the count and the pages. An action on all that match reads what is not in
    the history as a whole."""

    model_admin: HistoryAdmin

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        page = self.model_admin
        parts = page.parts(self.chosen, self.query)
        if not parts or request.method == "GET" or "export" in request.POST:
            return self._found(request, rows, parts) if parts else rows
        (end,) = ends_of_newest([page.history.name], NEWEST)
        return rows if end is None else rows.filter(page.outside_history | Q(pk__gt=end))

    def _found(
        self, request: HttpRequest, rows: QuerySet[Any], parts: Sequence[Part]
    ) -> QuerySet[Any]:
        """The rows that the list shows. The paginator takes their ids from the request."""
        ends = _ends(self.model._default_manager.using(conf().database), parts)
        self.left_out = self._note([part for part, end in zip(parts, ends, strict=True) if end])
        newest = [
            rows.filter(part.rows, pk__gt=end).values_list("pk", flat=True)
            for part, end in zip(parts, ends, strict=True)
        ]
        most = (NEWEST if "export" in request.POST else CappedPaginator.cap) + 1
        found = newest_of(newest, most)
        request.found = found  # type: ignore[attr-defined]
        # More come by the pages of their ids.
        return rows.filter(pk__in=found) if len(found) <= self.list_max_show_all else rows

    def _note(self, cut: Sequence[Part]) -> list[str]:
        """What the list says of the parts of which it searched the newest rows only."""
        notes = [searched(self.opts.verbose_name_plural, part.name) for part in cut]
        if any(part.table == self.model_admin.history.name for part in cut):
            notes.append(older())
        return notes


def searched(rows: _StrOrPromise | None, part: _StrOrPromise) -> str:
    """What a page says of a part of which it searched the newest rows only."""
    text = gettext(
        "Of the %(name)s that are %(part)s, only those among the newest %(number)s were searched."
    )
    return text % {"name": rows, "part": part, "number": number_text(NEWEST)}


def older() -> str:
    return gettext("To search older ones, choose the day on which they finished.")


def all_of(querysets: Sequence[QuerySet[Any]]) -> Sequence[Any]:
    return list(querysets[0].union(*querysets[1:], all=True)) if querysets else ()


def newest_of(parts: Sequence[QuerySet[Any]], most: int) -> list[Any]:
    """The newest rows of all parts. PostgreSQL merges them, and reads no further than these."""
    newest = [part.order_by("-pk")[:most] for part in parts]
    if len(newest) == 1:
        return list(newest[0])
    return list(newest[0].union(*newest[1:], all=True).order_by("-pk")[:most])


def _ends(everything: QuerySet[Any], parts: Sequence[Part]) -> list[int]:
    """Of each part the id of the row that follows its newest; 0 if they are all."""
    tables = [part.table for part in parts if part.table]
    of_table = dict(zip(tables, ends_of_newest(tables, NEWEST), strict=True))
    others = [
        everything.filter(part.rows)
        .order_by("-pk")
        .annotate(part=Value(number))
        .values_list("part", "pk")[NEWEST : NEWEST + 1]
        for number, part in enumerate(parts)
        if part.table is None
    ]
    found = dict(all_of(others))
    return [
        (of_table[part.table] if part.table else found.get(number)) or 0
        for number, part in enumerate(parts)
    ]


class HistoryAdmin(ConsoleAdmin):
    """The page of a model with rows in the history."""

    list_class = HistoryList
    history: ClassVar[PartitionedTable]
    outside_history: ClassVar[Q]
    """The rows of other tables."""

    def get_paginator(
        self, request: HttpRequest, queryset: Any, per_page: int, *given: Any, **options: Any
    ) -> Paginator[Any]:
        found: Any = getattr(request, "found", None)
        if found is None:
            found = getattr(getattr(request, "search", None), "found", None)
        if found is None:
            return super().get_paginator(request, queryset, per_page, *given, **options)
        paginator = FoundPaginator(queryset, per_page, *given, **options)
        paginator.found = found
        return paginator

    def parts(self, chosen: Mapping[str, str | None], text: str) -> Sequence[Part]:
        """The parts whose newest rows are read for these choices of filters and this text; none
        if an index finds the rows."""
        return ()
