"""Filters of the list of schedules."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...models import TickOutcome
from ...models.schedule import ARMED
from ..base.filters import Choices, EqualFilter, QueueFilter
from .display import OVERDUE, STATES


class ScheduleStateFilter(admin.SimpleListFilter):
    """By what the badge says."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return STATES.items()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        overdue = Q(next_due_at__lt=Now() - OVERDUE, stale=False)
        match self.value():
            case "on":
                coming = Q(next_due_at__isnull=False) | Q(stale=True)
                return queryset.filter(ARMED, coming).exclude(overdue)
            case "overdue":
                return queryset.filter(ARMED, overdue)
            case "ended":
                return queryset.filter(ARMED, next_due_at=None, stale=False)
            case "aside":
                return queryset.exclude(error="")
            case "disabled":
                return queryset.filter(enabled=False, error="")
            case "paused":
                return queryset.filter(enabled=True, error="", paused_at__isnull=False)
        return queryset


class ScheduleQueueFilter(QueueFilter):
    """By the queue of its jobs, also where the job type declares it."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        of_queue = [name for name in registry.names() if registry.get(name).queue == value]
        return queryset.filter(Q(queue=value) | Q(queue="", job_type__in=of_queue))


class DeclaredFilter(admin.SimpleListFilter):
    """By who owns it."""

    title = _("owner")
    parameter_name = "declared"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return (("yes", _("code")), ("no", _("the admin")))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(declared=value == "yes") if value in ("yes", "no") else queryset


class TickOutcomeFilter(EqualFilter):
    """By what became of a due time."""

    title = _("outcome")
    parameter_name = column = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return TickOutcome.choices
