"""What the lists of jobs show in a cell: tags, which are links to a filter, and first arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from django.contrib.admin.sites import AdminSite
from django.db.models import Case, F, Func, IntegerField, QuerySet, TextField, When
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...conf import conf
from ...domain.options import combined
from ...models import Job
from ...models.querysets import JobQuerySet
from ..base.formatting import list_url, one_line, shortened
from ..base.json_display import coding_of, masked, object_of
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

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return cast(JobQuerySet, rows).listed_by_tag(value)


def tag_links(tags: Iterable[str] | None, site: AdminSite) -> str:
    """Each tag as a link to the jobs that have it."""
    return format_html_join(
        " ",
        '<a class="jobs-tag" href="{}">{}</a>',
        ((list_url(site, Job, tag=tag), tag) for tag in tags or ()),
    )


def name_and_tags(job: Any, site: AdminSite) -> str:
    name = one_line(job.job_type, breaks=True)
    return format_html("{} {}", name, tag_links(job.tags, site)) if job.tags else name


MOST_STORED = 4_000
"""Bytes. A payload that is stored in more is not read, so that a list of large ones is fast."""
LONGEST_VALUE = 40
LONGEST = 200
CUT = "…"


def add_arguments(rows: list[Any]) -> None:
    """Give each job ``arguments``: a line of names and values, secrets masked. One statement."""
    jobs = Job.objects.using(conf().database).filter(pk__in=[row.pk for row in rows]).order_by()
    size = Func(F("payload"), function="pg_column_size", output_field=IntegerField())
    text = Case(When(stored__lte=MOST_STORED, then=Cast(F("payload"), TextField())))
    found = dict(jobs.annotate(stored=size, as_text=text).values_list("pk", "as_text"))
    for row in rows:
        stored = found.get(row.pk, "")
        row.arguments = CUT if stored is None else _line(row.job_type, stored)


def _line(name: str, payload: str) -> str:
    values: dict[str, Any] = masked(object_of(payload))
    job_type, coding = registry.find(name), coding_of(name)
    if coding is not None:
        values = coding.as_text(values)
    # PostgreSQL sorts them by their length.
    places = {one: at for at, one in enumerate(job_type.signature.parameters)} if job_type else {}
    names = sorted(values, key=lambda one: places.get(one, len(places)))
    line = ", ".join(f"{one}: {_shown(values[one])}" for one in names)
    return shortened(line, LONGEST) if line else ""


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, LONGEST_VALUE)
