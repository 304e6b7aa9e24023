"""The list of all jobs, newest first, and the page of one."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...models import Job
from ..base.filters import CreatedSinceFilter, JobTypeFilter, QueueFilter, StatusFilter
from ..base.formatting import ago, moment_column
from ..operator_actions import CANCEL, REPLAY, REPRIORITIZE, RUN_NOW
from .detail import JobPage
from .search import search_jobs


@admin.register(Job)
class JobAdmin(JobPage):
    list_display = (
        "id",
        "job_name",
        "queue_name",
        "state",
        "urgency",
        "failures_of",
        "due_in",
        "error_line",
    )
    list_filter = (StatusFilter, QueueFilter, JobTypeFilter, CreatedSinceFilter)
    search_fields = ("id",)  # shows the box; get_search_results does the search
    search_help_text = _(
        "Ids of jobs, type:name or key:idempotency-key. By type, or by the key of an ended job, "
        "only the newest 100,000 jobs are searched."
    )
    operator_actions = (CANCEL, REPRIORITIZE, RUN_NOW, REPLAY)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return search_jobs(queryset, search_term), False

    @admin.display(description=_("priority"))
    def urgency(self, job: Any) -> int:
        return int(job.priority)

    due_in = moment_column("available_at", _("due"), ago)
