"""The list of a page: its title, its filters as a row of fields, and its count as text. Some search
the newest rows alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.views.main import ORDER_VAR, SEARCH_VAR, ChangeList
from django.db.models import Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html_join
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.search_terms import near_terms
from ...lifecycle.scope import scope_of
from ...separators import number_text
from ..layout.tables import in_order, urls_by_id
from .choices import with_meant
from .filters import SinceFilter

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise
    from django.utils.safestring import SafeString


MOST_SORTED = 1_000
"""Rows of a list that a column may sort."""


class ConsoleList(ChangeList):
    """A list under its own name. Its template shows the filters as one row."""

    left_out: Sequence[str] = ()
    """What the list did not search or sort, in words."""

    def __init__(self, request: Any, *args: Any) -> None:
        super().__init__(request, *args)
        self.title = capfirst(str(self.opts.verbose_name_plural))
        self.filter_fields = [
            _field(one) for one in self.filter_specs if isinstance(one, SimpleListFilter)
        ]
        search: Any = getattr(request, "search", None)
        notes = [*self.left_out, *(getattr(one, "note", "") for one in self.filter_specs)]
        if not self.result_count and scope_of(request.user) is None:
            notes += [getattr(one, "unknown", "") for one in self.filter_specs]
            notes += [self._meant()] if search is None else search.unknown
        self.filter_notes = list(filter(None, notes))
        request.filter_notes = self.filter_notes  # for the question of an action
        request.console_list = self
        self.folded_fields = [one for one in self.filter_fields if one["folded"]]
        self.folded_in_use = sum(bool(one["value"]) for one in self.folded_fields)
        names = {SEARCH_VAR, *(one["name"] for one in self.filter_fields)}
        self.is_cut = (
            self.paginator.capped or bool(self.left_out) or (search is not None and search.is_cut)
        )
        self.kept = {name: value for name, value in self.params.items() if name not in names}
        chosen = self.kept.keys() - {ORDER_VAR} or any(one["value"] for one in self.filter_fields)
        self.narrowed = bool(self.query or chosen)
        self.has_filters = False  # else Django's template leaves a column for its own

    # Django takes any column of the address that has an order.
    def get_ordering_field(self, field_name: Any) -> Any:
        is_offered = field_name in (self.sortable_by or ())
        return super().get_ordering_field(field_name) if is_offered else None

    def url_for_result(self, result: Any) -> str:
        return self._urls(result.pk)

    @cached_property
    def _urls(self) -> Callable[[Any], str]:
        kept: Any = {"preserved_filters": self.preserved_filters, "opts": self.opts}
        url = add_preserved_filters(kept, super().url_for_result(self.model(pk=0)))
        self.preserved_filters = ""  # they are in the URL of each row
        return urls_by_id(url)

    def get_queryset(self, request: Any, *given: Any, **options: Any) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request, *given, **options)
        if self.params.get(ORDER_VAR) and self.sortable_by:
            next_row = rows.order_by().values("pk")[MOST_SORTED : MOST_SORTED + 1]
            if next_row:
                del self.params[ORDER_VAR]
                rows = rows.order_by(*self.get_ordering(request, rows.order_by()))
                text = _("More than %(number)s rows are not sorted. Use a filter.")
                self.left_out = [*self.left_out, text % {"number": number_text(MOST_SORTED)}]
        return rows

    def get_results(self, request: Any) -> None:
        super().get_results(request)
        page: Any = self.model_admin
        if not page.sorted_here:
            return
        key, is_down = self._sorts_here(page.sorted_here)
        rows = list(self.result_list if key is None else self.queryset[:MOST_SORTED])
        page.add_numbers(request, rows)
        if key is not None:
            rows = in_order(rows, key, is_down)
            if not (self.show_all and self.can_show_all):
                begin = (self.page_num - 1) * self.list_per_page
                rows = rows[begin : begin + self.list_per_page]
        self.result_list: Any = rows

    def _sorts_here(self, keys: Any) -> tuple[Callable[[Any], Any] | None, bool]:
        """What sorts the rows once they are read, and whether from the largest to the smallest."""
        first = self.params.get(ORDER_VAR, "").partition(".")[0]
        number = first.removeprefix("-")
        columns = dict(enumerate(map(str, self.list_display)))
        column = columns.get(int(number)) if number.isascii() and number.isdigit() else None
        return keys.get(column), first.startswith("-")

    def _meant(self) -> str:
        """What a search of names may mean that has found none."""
        if not (self.query and self.search_fields):
            return ""
        rows = self.root_queryset.order_by().values(*self.search_fields)[:MOST_SORTED]
        known: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            for column, name in row.items():
                for kind in ("", "type") if column == "job_type" else ("",):
                    known[kind] |= {name, *name.split(".")}
        return with_meant("", near_terms(self.query, known))

    @property
    def chosen(self) -> dict[str, str]:
        """The filters in use by their parameters."""
        specs = [one for one in self.filter_specs if isinstance(one, SimpleListFilter)]
        return {str(one.parameter_name): value for one in specs if (value := one.value())}

    @property
    def count_text(self) -> str:
        """``12``, or ``10,000+`` if the count stopped there."""
        return number_text(self.result_count) + ("+" if self.is_cut else "")

    def chosen_by(self, request: Any) -> str:
        """The filters and the search in use, as people read them."""
        specs = [one for one in self.filter_specs if isinstance(one, SimpleListFilter)]
        parts = [f"{one.title} {_named(one, request)}" for one in specs if one.value()]
        if self.query:
            parts.append(_("search “%(text)s”") % {"text": self.query})
        return ", ".join(parts)

    def changeable(self, action: Any) -> str | None:
        """How many rows of the list the action can change, as text: empty if that is not known
        without a count, and None if it can change none."""
        if len(self.result_list) == self.result_count:
            number = sum(map(action.applies, self.result_list))
            if number == self.result_count:
                return self.count_text
            if not self.is_cut:
                return number_text(number) if number else None
        if status := self.params.get("status"):
            return self.count_text if action.applies(self.model(status=status)) else None
        return ""

    @property
    def cap_text(self) -> str:
        return number_text(self.paginator.cap)


def _named(one: Any, request: Any) -> str:
    """The value of a filter. A filter may have better words for it than its choices."""
    value = str(one.value())
    if hasattr(one, "named"):
        return str(one.named(value, request))
    return str(dict(one.lookup_choices).get(value, value))


def _field(one: SimpleListFilter) -> dict[str, Any]:
    value = one.value() or ""
    choices = {str(key): str(label) for key, label in one.lookup_choices}
    typed = bool(getattr(one, "typed", False))
    if value and not typed:
        choices.setdefault(value, value)
    return {
        "name": str(one.parameter_name),
        "label": str(one.title),
        "value": value,
        "options": _options(tuple(choices.items()), None if typed else value),
        "typed": typed,
        "folded": bool(getattr(one, "folded", False)),
    }


# Hundreds of names, which seldom change: a tenth of the time of a list.
@lru_cache(maxsize=64)
def _options(choices: tuple[tuple[str, str], ...], chosen: str | None) -> SafeString:
    options = ((key, " selected" if key == chosen else "", label) for key, label in choices)
    return format_html_join("", '<option value="{}"{}>{}</option>', options)


NEWEST = 100_000
"""Rows of a part that a list reads without an index: 20 ms if they are small and cached."""


class Searched(NamedTuple):
    """The rows of which a list searches the newest, by ``column``, as an index has them."""

    rows: Q
    column: str
    name: _StrOrPromise


class NewestList(ConsoleList):
    """Says so if it did not search all rows. An action on all that match reads the same rows."""

    def searched(self, request: HttpRequest, chosen: Mapping[str, str]) -> Searched | None:
        """What is searched for these choices of filters; None if an index finds the rows."""
        raise NotImplementedError

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        part = self.searched(request, self.chosen)
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
