"""Workflows: each version as it was stored when it was first started. Read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...conf import conf
from ...models import WorkflowDefinition, WorkflowRun
from ..base.formatting import NOTHING, change_url, column, joined, moment_column, text_column
from ..base.json_display import object_of, texts
from ..base.model_admin import CappedCount, ConsoleAdmin, allowed_by, section
from ..lists.filters import WorkflowFilter

MOST_VERSIONS = 50
COMPARED = "compare"
"""The parameter with the version to compare with; by default the one before."""


@admin.register(WorkflowDefinition)
class WorkflowDefinitionAdmin(ConsoleAdmin):
    change_form_template = "admin/django_jobs/workflow/definition.html"
    list_display = ("workflow_name", "number", "runs_of", "created")
    list_display_links = ("workflow_name", "number")
    list_filter = (WorkflowFilter,)
    empty = _("No workflow has started yet. Its first start stores its steps here.")
    ordering = ("name", "-version")
    unread = ("graph",)
    fieldsets = (
        section(None, ("workflow_name", "number", "runs_of", "created"), ("versions", "hash_text")),
    )

    has_view_permission = allowed_by("view_workflowdefinition", "view_workflowrun")

    def annotations(self) -> dict[str, Any]:
        runs = WorkflowRun.objects.using(conf().database).filter(definition=OuterRef("pk"))
        return {"runs_": CappedCount(runs)}

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        from ...domain.graph import Difference
        from .declared_steps import (
            declared_picture,
            declared_steps,
            declared_table,
            difference_of,
        )

        graph, context = _graph(obj), super().page_context(request, obj)
        steps = declared_steps(graph)
        changed = Difference()
        if other := _compared(obj, request.GET.get(COMPARED, "")):
            changed, changes = difference_of(_graph(other), graph)
            context |= {"other": other, "difference": changed, "changes": changes}
        url = self._start_url(request, obj)
        return {
            **context,
            "tools": [(_("Start a run"), url, "")] if url else [],
            "picture": declared_picture(steps, changed),
            "tables": [declared_table(steps, changed)],
        }

    def _start_url(self, request: HttpRequest, definition: Any) -> str:
        """The form that starts a run, if this is the version that starts now."""
        from .starting import PERMISSION, start_url

        workflow = registry.workflow(definition.name)
        if workflow is None or workflow.version != definition.version:
            return ""
        return start_url(self, workflow.name) if request.user.has_perm(PERMISSION) else ""

    workflow_name = text_column("name", _("name"))
    number = column(_("version"), lambda definition: f"v{definition.version}")

    runs_of = column(
        _("runs"),
        lambda definition: definition.visible.count_link(
            WorkflowRun, definition.runs_, definition__id__exact=definition.pk
        ),
    )

    @admin.display(description=_("other versions"))
    def versions(self, definition: Any) -> str:
        """The other versions, each with a link to compare this one with it."""
        rows = _versions(definition).exclude(pk=definition.pk)[:MOST_VERSIONS]
        url = change_url(self.admin_site, WorkflowDefinition, definition.pk)
        shown = (
            format_html(
                '<a href="{}">v{}</a> (<a href="{}?{}={}">{}</a>)',
                change_url(self.admin_site, WorkflowDefinition, row.pk),
                row.version,
                url,
                COMPARED,
                row.version,
                _("compare"),
            )
            for row in rows
        )
        return joined(", ", shown) or NOTHING

    hash_text = text_column("fingerprint", _("fingerprint"))
    created = moment_column("created_at", _("first started"))


def _versions(definition: Any) -> Any:
    """All versions of a workflow, the newest first."""
    rows: Any = WorkflowDefinition.objects.using(definition._state.db).defer("graph")
    return rows.filter(name=definition.name).order_by("-version")


def _compared(definition: Any, chosen: str) -> Any:
    """The version to compare with; None if there is no other one."""
    if chosen.isascii() and chosen.isdigit() and len(chosen) < 10:
        return _versions(definition).filter(version=int(chosen)).exclude(pk=definition.pk).first()
    return _versions(definition).filter(version__lt=definition.version).first()


def _graph(definition: Any) -> dict[str, Any]:
    return object_of(texts(definition, ["graph"])["graph"][0])
