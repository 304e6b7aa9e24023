"""The tags that the templates of the console share."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.context import RequestContext

from ..separators import number_text

register = template.Library()


@register.inclusion_tag("admin/django_jobs/tabs.html", takes_context=True)
def console_tabs(context: RequestContext) -> dict[str, Any]:
    """The tabs of the console, for any page of the app."""
    # Django imports the tag libraries of all apps, also in a project without its admin.
    from ..admin.layout.tabs import tabs_of

    request = context.get("request")
    if request is None or context.get("is_popup"):
        return {"tabs": []}
    opts = context.get("opts")
    model_name = opts.model_name if opts is not None else ""
    return {"tabs": tabs_of(request, context.get("available_apps") or [], model_name)}


@register.filter
def number(value: float) -> str:
    """A number, with the separators of the reader's language."""
    return number_text(value)
