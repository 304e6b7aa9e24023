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

from ... import registry
from ...models import Queue

MOST_CHOICES = 200

Choices = Iterable[tuple[Any, Any]]


class EqualFilter(admin.SimpleListFilter):
    """Rows whose ``column`` equals the choice."""

    column = ""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(**{self.column: value})


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


class QueueFilter(EqualFilter):
    title = _("queue")
    parameter_name = column = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return [(name, name) for name in Queue.objects.names()[:MOST_CHOICES]]


class JobTypeFilter(EqualFilter):
    """By job type. Lists the types that this process knows."""

    title = _("job type")
    parameter_name = column = "job_type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return [(name, name) for name in registry.names()[:MOST_CHOICES]]


SPANS = {
    "1h": (timedelta(hours=1), _("the last hour")),
    "3h": (timedelta(hours=3), _("the last 3 hours")),
    "24h": (timedelta(hours=24), _("the last 24 hours")),
    "3d": (timedelta(days=3), _("the last 3 days")),
    "7d": (timedelta(days=7), _("the last 7 days")),
}


class SinceFilter(admin.SimpleListFilter):
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
    title = _("time created")
    parameter_name = "created"
    column = "created_at"


class FinishedSinceFilter(SinceFilter):
    title = _("time finished")
    parameter_name = "finished"
    column = "finished_at"
