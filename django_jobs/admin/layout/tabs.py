"""The tabs on all pages of the app: those that the user may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext_lazy as _

from ...lifecycle.scope import scope_of

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

APP = "django_jobs"


@dataclass(frozen=True, slots=True)
class Section:
    """An area of the console: the lists of its models, the first of which is its page."""

    label: _StrOrPromise
    models: tuple[str, ...]
    page: str = ""
    """The URL name of the area's page, if that is not a list. It needs the view permission of the
    first model, and is left out while the URL does not resolve, and for users with a scope: it is
    about all queues and job types."""


SECTIONS = (
    Section(_("Overview"), ("overview",)),
    Section(_("Jobs"), ("job", "run", "bulkoperation")),
    Section(_("Failures"), ("deadletter", "quarantine"), page="django_jobs_failures"),
    Section(_("Queues"), ("queue",)),
    Section(_("Schedules"), ("schedule", "tick", "backfill")),
    Section(_("Workflows"), ("workflowrun", "workflowdefinition")),
    Section(_("Limits"), ("resource", "tenant")),
    Section(_("Workers"), ("worker",)),
)


@dataclass(frozen=True, slots=True)
class Tab:
    """A link, and the value of its ``aria-current``: empty, ``page`` or ``true``."""

    label: _StrOrPromise
    url: str
    current: str = ""
    lists: Sequence[Tab] = field(default=())
    """The lists of the area, if there are several."""


def tabs_of(request: HttpRequest, apps: Sequence[dict[str, Any]], model_name: str) -> list[Tab]:
    """The tabs for the page of a model. ``apps`` is what Django's admin lists for the user."""
    entries = {
        entry["object_name"].lower(): entry
        for app in apps
        if app["app_label"] == APP
        for entry in app["models"]
        if entry["admin_url"]
    }
    tabs = (_tab(request, section, entries, model_name) for section in SECTIONS)
    return [tab for tab in tabs if tab is not None]


def _tab(
    request: HttpRequest, section: Section, entries: dict[str, dict[str, Any]], model_name: str
) -> Tab | None:
    within = model_name in section.models
    user = getattr(request, "user", None)
    has_page = section.page and section.models[0] in entries and scope_of(user) is None
    url = _address(request, section.page) if has_page else ""
    on_page = bool(url) and request.path.startswith(url)
    lists = [_link(request, section.label, url, on_page)] if url else []
    lists += [
        _link(
            request,
            entries[name]["name"],
            entries[name]["admin_url"],
            name == model_name and not on_page,
        )
        for name in section.models
        if name in entries
    ]
    if not lists:
        return None
    several = lists if within and len(lists) > 1 else []
    here = "true" if within else ""
    return Tab(section.label, lists[0].url, here if several else lists[0].current, several)


def _link(request: HttpRequest, label: _StrOrPromise, url: str, within: bool) -> Tab:
    here = request.path == url
    return Tab(label, url, "page" if here else "true" if within else "")


def _address(request: HttpRequest, name: str) -> str:
    try:
        return reverse(f"admin:{name}", current_app=getattr(request, "current_app", None))
    except NoReverseMatch:
        return ""
