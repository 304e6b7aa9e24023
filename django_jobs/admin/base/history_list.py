"""Lists that reach into the history, and read a bounded part of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext_lazy as _

from ...lifecycle.history import PartitionedTable, newest_part, partitions
from ..lists.change_list import ConsoleList
from ..lists.filters import Choices, ListFilter, SinceFilter
from .model_admin import ConsoleAdmin

MOST_READ = 500_000_000
"""Bytes of the history that a list searches without an index: 1,500,000 jobs of 330 bytes, which
takes half a second if they are cached."""


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

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        one = self._bounds.get(value)
        if one is None:  # dropped since the page was read
            return queryset.none()
        return queryset.filter(finished_at__gte=one.start, finished_at__lt=one.end)


def _label(start: datetime, end: datetime) -> str:
    first, last = start.astimezone(UTC), (end - timedelta(days=1)).astimezone(UTC)
    text = date_format(first, "DATE_FORMAT")
    return text if first == last else f"{text} - {date_format(last, 'DATE_FORMAT')}"


class HistoryList(ConsoleList):
    """The newest rows of all come by their ids. For the other columns there is no index, because
    each settle would have to write it: rows that are narrowed by one are searched for among those
    that are not in the history, and in its newest partitions."""

    model_admin: HistoryAdmin
    reached_from: datetime | None = None
    """Rows that finished earlier were not searched."""

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        chosen = {
            str(one.parameter_name): one.value()
            for one in self.filter_specs
            if isinstance(one, admin.SimpleListFilter) and one.value() is not None
        }
        page = self.model_admin
        if not page.searches(chosen, self.query):
            return rows
        earliest = newest_part(page.history, MOST_READ)
        if earliest is None:
            return rows
        spans = (one.span for one in self.filter_specs if isinstance(one, SinceFilter))
        wanted = [timezone.now() - span for span in spans if span is not None]
        if not wanted or max(wanted) < earliest:
            self.reached_from = earliest
        return rows.filter(page.outside_history | Q(finished_at__gte=earliest))


class HistoryAdmin(ConsoleAdmin):
    """The page of a model with rows in the history."""

    history: ClassVar[PartitionedTable]
    outside_history: ClassVar[Q]
    """The rows of other tables."""

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return HistoryList

    def searches(self, chosen: Mapping[str, str | None], text: str) -> bool:
        """Whether a list with these choices of filters, and this text in the search box, reads the
        history without an index. The times are not in it: partitions are cut off by them."""
        return PartitionFilter.parameter_name not in chosen and bool(chosen.keys() - {"finished"})
