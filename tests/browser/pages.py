"""The addresses of all pages of the console, read from the URLs of the admin."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.test import Client
from django.urls import NoReverseMatch, URLPattern, reverse

from django_jobs.models import Job, JobStatus
from django_jobs.models.totals import Overview

NOT_A_PAGE = ("_delete", "_history", "schedule_preview", "failure_group", "job_file")
"""How the names of addresses end that are Django's own pages, read by a script, downloads, or need
more than a row."""


def console_pages(user: Any) -> Iterator[str]:
    """The app's index, and of each model the pages without a row and those of its newest row. Of
    jobs, the pages of one in each status."""
    yield reverse("admin:app_list", args=["django_jobs"])
    request = HttpRequest()
    request.user = user
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label != "django_jobs":
            continue
        left_out = NOT_A_PAGE if model_admin.has_add_permission(request) else (*NOT_A_PAGE, "_add")
        rows = _one_in_each_status() if model is Job else _newest(model)
        for pattern in model_admin.get_urls():
            name = isinstance(pattern, URLPattern) and pattern.name
            if name and not name.endswith(left_out):
                yield from _addresses(name, _editable(rows) if "edit" in name else rows)


def _editable(rows: list[int]) -> list[int]:
    """Those of the jobs that can be edited."""
    statuses = JobStatus.SCHEDULED, JobStatus.DEAD
    return list(Job.objects.filter(pk__in=rows, status__in=statuses).values_list("pk", flat=True))


def _newest(model: type[Model]) -> list[int]:
    return list(model._default_manager.order_by("-pk").values_list("pk", flat=True)[:1])


def _one_in_each_status() -> list[int]:
    rows = [
        Job.objects.filter(status=status).latest("pk").pk
        for status in Job.objects.values_list("status", flat=True).distinct()
    ]
    assert len(rows) == len(JobStatus)
    return rows


def _addresses(name: str, rows: list[int]) -> Iterator[str]:
    try:
        yield reverse(f"admin:{name}")
    except NoReverseMatch:
        for pk in rows:
            try:
                yield reverse(f"admin:{name}", args=[pk])
            except NoReverseMatch:
                return


def filtered_pages(client: Client, *, choices: int = 12) -> Iterator[str]:
    """Each list with each choice of each of its filters, of a long filter the first ones."""
    for model in admin.site._registry:
        if model._meta.app_label != "django_jobs" or model is Overview:  # which is no list
            continue
        path = reverse(f"admin:django_jobs_{model._meta.model_name}_changelist")
        changelist = client.get(path).context_data["cl"]
        for spec in changelist.filter_specs:
            for choice in islice(spec.choices(changelist), 1, choices):
                yield f"{path}{choice['query_string']}"
