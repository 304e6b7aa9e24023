"""The list of all jobs, newest first, and the page of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...lifecycle.history import JOBS
from ...models import Job
from ..base.formatting import ago, moment_column
from ..base.history_list import HistoryAdmin, PartitionFilter
from ..base.search import Search, unchecked
from ..base.search_rows import HISTORY, OUTSIDE_HISTORY, search_jobs
from ..editing.edit import edit_view
from ..editing.enqueue import enqueue_url, enqueue_view
from ..layout.console_page import console_path, is_unconfirmed
from ..lists.filters import CreatedSinceFilter, JobTypeFilter, QueueFilter, StatusFilter
from ..lists.job_filters import (
    ErrorFilter,
    ScheduleFilter,
    TenantFilter,
    WorkerFilter,
    WorkflowOfStepFilter,
    WorkflowRunFilter,
    with_error,
)
from ..operator_actions import CANCEL, DISMISS, INSPECT, REPLAY, REPRIORITIZE, RUN_NOW
from ..workflow_actions import SIGNAL, SKIP_STEP
from .detail import JobPage
from .reveal import reveal_view
from .tags import TagFilter


class JobPartitionFilter(PartitionFilter):
    table = JOBS


@admin.register(Job)
class JobAdmin(HistoryAdmin, JobPage):
    history = JOBS
    outside_history = OUTSIDE_HISTORY
    list_display = (
        "id",
        "state",
        "job_name",
        "queue_name",
        "urgency",
        "failures_of",
        "due_in",
        "error_line",
    )
    list_filter = (
        StatusFilter,
        QueueFilter,
        JobTypeFilter,
        TagFilter,
        CreatedSinceFilter,
        ErrorFilter,
        WorkerFilter,
        ScheduleFilter,
        TenantFilter,
        WorkflowOfStepFilter,
        WorkflowRunFilter,
        JobPartitionFilter,
    )
    empty = _("No jobs yet. They come from calls of enqueue(), from schedules and from workflows.")
    for_all = (CANCEL,)
    operator_actions = (CANCEL, REPRIORITIZE, RUN_NOW, INSPECT, REPLAY, DISMISS, SIGNAL, SKIP_STEP)
    change_list_template = "admin/django_jobs/job/change_list.html"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        text = with_error(search_term, request.GET.get(ErrorFilter.parameter_name))
        return super().get_search_results(request, queryset, text)

    def found(self, request: HttpRequest, rows: QuerySet[Any], search: Search) -> QuerySet[Any]:
        if search.up_to is not None:
            search.note(gettext("Jobs that have succeeded or were cancelled are not counted."))
        in_one = PartitionFilter.parameter_name in request.GET
        return search_jobs(rows, search, in_one_partition=in_one, bounded=not in_one)

    def searches(self, chosen: Mapping[str, str | None], text: str) -> bool:
        text = with_error(text, chosen.get(ErrorFilter.parameter_name))
        chosen = {name: chosen[name] for name in chosen if name != ErrorFilter.parameter_name}
        search = unchecked(text)
        if {WorkflowRunFilter.parameter_name, TagFilter.parameter_name} & chosen.keys():
            return False
        if search.by_index or chosen.get("status", HISTORY[0]) not in HISTORY:
            return False
        return super().searches({**chosen, **({"q": text} if search.reads_history else {})}, text)

    def get_urls(self) -> list[Any]:
        edit, enqueue = "django_jobs_job_edit", "django_jobs_job_enqueue"
        reveal, may_reveal = "django_jobs_job_reveal", self.has_reveal_permission
        return [
            console_path(self, "<int:job_id>/reveal/", reveal_view, reveal, may_reveal),
            console_path(
                self,
                "<int:job_id>/edit/",
                edit_view,
                edit,
                self.has_edit_permission,
                is_unconfirmed,
            ),
            console_path(self, "enqueue/", enqueue_view, enqueue, self.has_enqueue_permission),
            *super().get_urls(),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        url = enqueue_url(self) if self.has_enqueue_permission(request) else ""
        return super().changelist_view(request, {**(extra_context or {}), "enqueue_url": url})

    @admin.display(description=_("priority"))
    def urgency(self, job: Any) -> int:
        return int(job.priority)

    due_in = moment_column("available_at", _("due"), ago)
