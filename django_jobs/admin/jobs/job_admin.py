"""The list of all jobs, newest first, and the page of one."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ...models import Job
from ..base.actions import run_action
from ..base.filters import CreatedSinceFilter, JobTypeFilter, QueueFilter, StatusFilter
from ..base.formatting import ago
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
        "Numbers of jobs, type:name or key:idempotency-key. By type and by the key of an ended job "
        "the newest 100,000 jobs are searched."
    )
    actions = ("cancel_jobs", "reprioritize_jobs", "run_jobs_now", "replay_jobs")
    operator_actions = (REPLAY, RUN_NOW, REPRIORITIZE, CANCEL)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return search_jobs(queryset, search_term), False

    @admin.display(description=_("priority"))
    def urgency(self, job: Any) -> int:
        return int(job.priority)

    @admin.display(description=_("due"))
    def due_in(self, job: Any) -> str:
        return ago(job.available_at, job.read_at)

    @admin.action(permissions=["cancel"], description=_("Cancel"))
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return run_action(self, request, queryset, CANCEL)

    @admin.action(permissions=["reprioritize"], description=_("Change priority"))
    def reprioritize_jobs(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        return run_action(self, request, queryset, REPRIORITIZE)

    @admin.action(permissions=["run"], description=_("Run now"))
    def run_jobs_now(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return run_action(self, request, queryset, RUN_NOW)

    @admin.action(permissions=["replay"], description=_("Replay"))
    def replay_jobs(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return run_action(self, request, queryset, REPLAY)
