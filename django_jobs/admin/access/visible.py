"""What a user may see, and the links to it: none leads to a page that is refused."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from django.contrib.admin.sites import AdminSite
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ...models import Job, Worker
from ..base.formatting import NOTHING, change_url, list_url, page_url
from ..base.model_admin import allowed_by, counted


class Visible:
    """The pages of a site that the user of a request may see."""

    def __init__(self, site: AdminSite, request: HttpRequest) -> None:
        self.site = site
        self.request = request
        self.sees = cache(self._sees)

    def _sees(self, model: type[Model]) -> bool:
        if not self.site.is_registered(model):
            return False
        page: Any = self.site.get_model_admin(model)
        return bool(page.has_view_or_change_permission(self.request))

    def link(self, model: type[Model], pk: Any, text: str) -> str:
        """The text, as a link to the row if the user may see it."""
        if pk is None or not self.sees(model):
            return text
        return format_html('<a href="{}">{}</a>', change_url(self.site, model, pk), text)

    def worker(self, pk: int | None, workers: dict[int, Worker]) -> str:
        """A worker by its name, as a link to it, or by its number if its row has been deleted."""
        if pk is None:
            return NOTHING
        worker = workers.get(pk)
        if worker is None:
            return _("worker %(id)s (deleted)") % {"id": pk}
        return self.link(Worker, pk, str(worker))

    def list_link(self, model: type[Model], text: str, **filters: Any) -> str:
        """The text, as a link to the list if the user may see it."""
        if not self.sees(model):
            return text
        return format_html('<a href="{}">{}</a>', list_url(self.site, model, **filters), text)

    def count_link(self, model: type[Model], number: int, **filters: Any) -> str:
        """How many rows match the filters, as a link to them."""
        return self.list_link(model, counted(number), **filters) if number else "0"

    def list_url(self, model: type[Model], **filters: Any) -> str:
        return list_url(self.site, model, **filters)

    def page_url(self, name: str) -> str:
        """The address of a page by the name of its URL; empty if there is none."""
        try:
            return page_url(self.site, name)
        except NoReverseMatch:
            return ""

    def job(self, id_: int, text: str = "") -> str:
        """A job, as a link to it."""
        return self.link(Job, id_, text or f"#{id_}")


class LinksVisible:
    """A page whose rows have ``visible``, for the links in its list and on the page of a row."""

    admin_site: AdminSite

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)  # type: ignore[misc]
        if row is not None:
            row.visible = Visible(self.admin_site, request)
        return row

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changes = super().get_changelist_instance(request)  # type: ignore[misc]
        changes.result_list = list(changes.result_list)
        visible = Visible(self.admin_site, request)
        for row in changes.result_list:
            row.visible = visible
        return changes


class Exported:
    """A page whose list can be exported."""

    exported: ClassVar[tuple[str, ...]]
    """The columns. Those of them that are ``unread`` are JSON with arguments or results."""
    has_export_permission = allowed_by("export_job")

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        context: dict[str, Any] = super().list_context(request)  # type: ignore[misc]
        return {**context, "may_export": self.has_export_permission(request)}

    def changelist_view(self, request: HttpRequest, *given: Any) -> HttpResponse:
        response: HttpResponse = super().changelist_view(request, *given)  # type: ignore[misc]
        changes = (getattr(response, "context_data", None) or {}).get("cl")
        if "export" not in request.POST or changes is None:
            return response
        if not self.has_export_permission(request):
            raise PermissionDenied
        from .export import export_list

        return export_list(self, request, changes)  # type: ignore[return-value]
