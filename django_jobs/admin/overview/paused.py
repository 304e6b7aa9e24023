"""The page with all that is paused: queues, schedules, resources, tenants and job types."""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...models import Quarantine, Queue, Resource, Schedule, Tenant
from ..base.formatting import NOTHING, Visible, ago, moment_in_zone
from ..layout.console_page import console_page
from ..layout.tables import Column, Table

KINDS: tuple[type[Model], ...] = (Queue, Schedule, Resource, Tenant, Quarantine)
PAUSE = ("paused_at", "paused_until", "paused_by", "paused_reason")
QUARANTINE = ("since", "until", "by", "reason")
MOST = 1_000
"""Rows of each kind, the newest ones."""


def paused(page: Any, request: HttpRequest) -> HttpResponse:
    """The page, with the kinds whose lists the user may see, newest first."""
    visible = Visible(page.admin_site, request)
    pauses = [
        (*(getattr(row, column) for column in columns_of(type(row))), row)
        for model in KINDS
        if visible.sees(model)
        for row in _rows(page.admin_site.get_model_admin(model).get_queryset(request))
    ]
    table = Table(
        title=_("All that is paused"),
        columns=list(
            map(Column, (_("Name"), _("What"), _("Since"), _("Until"), _("By"), _("Reason")))
        ),
        rows=[
            (
                visible.link(type(row), row.pk, str(row)),
                capfirst(str(row._meta.verbose_name)),
                ago(since, row.read_at),
                moment_in_zone(until),
                by or NOTHING,
                reason or NOTHING,
            )
            for since, until, by, reason, row in sorted(pauses, key=lambda p: p[0], reverse=True)
        ],
        empty=_("Nothing is paused."),
    )
    return console_page(page, request, "overview/paused.html", title=_("Paused"), table=table)


def columns_of(model: type[Model]) -> tuple[str, ...]:
    """Since and until when a row is paused, by whom and why."""
    return QUARANTINE if model is Quarantine else PAUSE


def _rows(rows: Any) -> Any:
    if rows.model is Quarantine:
        return rows.filter(lifted_at=None).order_by("-since")[:MOST]
    return rows.exclude(paused_at=None).order_by("-paused_at")[:MOST]
