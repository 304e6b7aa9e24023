"""The tags of a job: links to all jobs that have one, and the filter that they choose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from django.contrib.admin.sites import AdminSite
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...domain.tags import combined
from ...models import Job
from ...models.querysets import JobQuerySet
from ..base.formatting import list_url, one_line
from ..lists.choices import choices_of
from ..lists.filters import MOST_CHOICES, Choices, ListFilter


class TagFilter(ListFilter):
    """Jobs with a tag. Suggests those that job types declare; any other can be typed."""

    title = _("tag")
    parameter_name = "tag"
    folded = typed = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        offered = dict(choices_of(request, "job_type"))
        types = (registry.get(name) for name in registry.names() if name in offered)
        declared = combined(*(one.tags for one in types))
        return [(tag, tag) for tag in declared[:MOST_CHOICES]]

    def knows(self, value: str) -> bool:
        return True  # an enqueue can give any tag

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        tag = self.value()
        return queryset if tag is None else cast(JobQuerySet, queryset).listed_by_tag(tag)


def tag_links(tags: Iterable[str] | None, site: AdminSite) -> str:
    """Each tag as a link to the jobs that have it."""
    return format_html_join(
        " ",
        '<a class="jobs-tag" href="{}">{}</a>',
        ((list_url(site, Job, tag=tag), tag) for tag in tags or ()),
    )


def name_and_tags(job: Any, site: AdminSite) -> str:
    name = one_line(job.job_type)
    return format_html("{} {}", name, tag_links(job.tags, site)) if job.tags else name
