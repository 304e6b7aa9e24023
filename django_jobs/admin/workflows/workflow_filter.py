"""The filter of the lists by the name of a workflow."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...models import WorkflowDefinition
from ..base.filters import MOST_CHOICES, Choices, EqualFilter


class WorkflowFilter(EqualFilter):
    """By name. Lists the workflows that have a definition: a chain has its own name."""

    title = _("workflow")
    parameter_name = column = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        rows = WorkflowDefinition.objects.using(conf().database).order_by("name")
        names = list(rows.values_list("name", flat=True).distinct()[:MOST_CHOICES])
        return [(name, name) for name in names]
