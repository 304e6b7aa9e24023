"""The filter of dead letters by the fingerprint of their last error."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...lifecycle.dead_letters import queues_with_dead
from ..lists.filters import TypedFilter

NO_ERROR = "none"
"""The value for dead jobs without an error."""


class FingerprintFilter(TypedFilter):
    """The dead letters of one failure. It is chosen by a link on the page of failures."""

    title = _("failure")
    parameter_name = column = "fingerprint"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        # Names the queues, so that the index of failures is used.
        fingerprint = "" if value == NO_ERROR else value
        return queryset.filter(queue__in=queues_with_dead(), fingerprint=fingerprint)
