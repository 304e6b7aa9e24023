"""The filter of the lists by the name of a workflow."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from .filters import NameFilter


class WorkflowFilter(NameFilter):
    """By name. Offers the workflows that have a definition: a chain has its own name."""

    title = _("workflow")
    parameter_name = column = "name"
    kind = "workflow"
