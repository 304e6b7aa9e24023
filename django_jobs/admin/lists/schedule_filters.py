"""Filters of the list of schedules."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...models.querysets import ScheduleQuerySet
from ...models.schedule_state import ScheduleState
from .filters import Choices, ListFilter, QueueFilter


class ScheduleStateFilter(ListFilter):
    """By the state that the badge shows."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return ScheduleState.choices

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Any]:
        value = self.value() or ""
        rows: ScheduleQuerySet = queryset
        return rows.in_state(ScheduleState(value)) if value in ScheduleState else queryset


class ScheduleQueueFilter(QueueFilter):
    """By the queue of its jobs, including a queue that only the job type declares."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        of_queue = [name for name in registry.names() if registry.get(name).queue == value]
        return queryset.filter(Q(queue=value) | Q(queue="", job_type__in=of_queue))


class DeclaredFilter(ListFilter):
    """By owner: code or the admin."""

    title = _("owner")
    parameter_name = "declared"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return (("yes", _("code")), ("no", _("the admin")))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(declared=value == "yes") if value in ("yes", "no") else queryset
