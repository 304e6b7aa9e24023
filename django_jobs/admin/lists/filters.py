"""Filters of the lists. Choices come from small tables and code, never from the listed rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .choices import choices_of

MOST_CHOICES = 200
"""In a list of choices. With more, the filter is a text field that suggests them."""

Choices = Iterable[tuple[Any, Any]]


class ListFilter(admin.SimpleListFilter):
    """A field of the row above the list. The form sends it empty if it is not used."""

    folded = False
    """Below "More filters"."""
    note = ""
    """What the filter left out, below the list."""

    @property
    def typed(self) -> bool:
        """A text field that suggests the choices."""
        return len(self.lookup_choices) > MOST_CHOICES

    def value(self) -> str | None:
        return super().value() or None

    def has_output(self) -> bool:
        # Django drops a filter without choices. The choice may be a value that is not offered.
        return True


class EqualFilter(ListFilter):
    """Rows whose ``column`` equals the choice."""

    column = ""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(**{self.column: value})


class NameFilter(EqualFilter):
    """By a name. Offers those of one kind."""

    kind = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return choices_of(request, self.kind)


class TypedFilter(EqualFilter):
    """Rows whose ``column`` equals what is typed."""

    folded = typed = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return ()


class IdFilter(TypedFilter):
    """By the id of another row. Nothing else is found than by a number."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        number = value.lstrip("#")
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            return queryset.none()
        return queryset.filter(**{self.column: int(number)})


class ChoiceFilter(EqualFilter):
    """By a column with choices."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        choices: Choices = model_admin.model._meta.get_field(self.column).choices
        return choices


class StatusFilter(ChoiceFilter):
    title = _("status")
    parameter_name = column = "status"


class OutcomeFilter(ChoiceFilter):
    title = _("outcome")
    parameter_name = column = "outcome"


class QueueFilter(NameFilter):
    title = _("queue")
    parameter_name = column = kind = "queue"


class JobTypeFilter(NameFilter):
    """By job type. Offers those that this process knows, and those that rows name."""

    title = _("job type")
    parameter_name = column = kind = "job_type"


SPANS = {
    "1h": (timedelta(hours=1), _("the last hour")),
    "3h": (timedelta(hours=3), _("the last 3 hours")),
    "24h": (timedelta(hours=24), _("the last 24 hours")),
    "3d": (timedelta(days=3), _("the last 3 days")),
    "7d": (timedelta(days=7), _("the last 7 days")),
}


class SinceFilter(ListFilter):
    """Rows whose ``column`` is at most a given age, by the database's clock."""

    column = ""

    @property
    def span(self) -> timedelta | None:
        """The chosen age."""
        chosen = SPANS.get(self.value() or "")
        return None if chosen is None else chosen[0]

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return [(key, label) for key, (_span, label) in SPANS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        span = self.span
        return (
            queryset if span is None else queryset.filter(**{f"{self.column}__gte": Now() - span})
        )


class CreatedSinceFilter(SinceFilter):
    title = _("created")
    parameter_name = "created"
    column = "created_at"


class FinishedSinceFilter(SinceFilter):
    title = _("finished")
    parameter_name = "finished"
    column = "finished_at"
