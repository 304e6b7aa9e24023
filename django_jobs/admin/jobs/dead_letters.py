"""The list of dead letters and the page of one."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ...models import DeadLetter
from ..base.formatting import ago, moment_column, one_line
from ..base.search import Search, search_jobs
from ..failures import GROUP, GROUPS
from ..failures.filters import FingerprintFilter, failure_links
from ..layout.console_page import console_path, is_unconfirmed
from ..lists.filters import FinishedSinceFilter, JobTypeFilter, QueueFilter
from ..operator_actions import DISMISS, REPLAY
from .detail import JobPage


@admin.register(DeadLetter)
class DeadLetterAdmin(JobPage):
    """Dead jobs: the reason of each, and the actions that replay them."""

    list_display = ("id", "job_name", "arguments_line", "queue_name", "why", "failures_of", "died")
    empty = _(
        "No dead letters. A job is listed here when its last attempt has failed, until it is "
        "replayed or dismissed."
    )
    list_filter = (FinishedSinceFilter, QueueFilter, JobTypeFilter, FingerprintFilter)
    operator_actions = (REPLAY, DISMISS)

    def get_urls(self) -> list[Any]:
        allowed, groups = self.has_view_permission, "failures.groups_page.groups_view"
        pages = [
            console_path(self, "failures/", groups, GROUPS, allowed, is_unconfirmed),
            console_path(self, "failures/one/", "failures.group_page.group_view", GROUP, allowed),
        ]
        return [*pages, *super().get_urls()]

    def found(self, request: HttpRequest, rows: QuerySet[Any], search: Search) -> QuerySet[Any]:
        return search_jobs(rows, search, in_one_partition=True)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {
            "gone": _("Those that did may have been replayed, dismissed or deleted."),
            "gone_links": failure_links(self.admin_site, request),
        }
        context = context if FingerprintFilter.parameter_name in request.GET else {}
        return super().changelist_view(request, {**(extra_context or {}), **context})

    @admin.display(description=_("last error"))
    def why(self, job: Any) -> str:
        text = one_line(job.reason)
        if job.last_error and job.last_error not in job.reason:
            text = one_line(job.last_error, f"{job.reason}\n{job.last_error}")
        if not job.at_most_once:
            return text
        mark = '<strong class="jobs-caution-text">{}</strong> · {}'
        return format_html(mark, self.delivery_text(job), text)

    died = moment_column("finished_at", _("finished"), ago)

    # Actions are logged for the job, whose row stays when it is no longer a dead letter.
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        name = "admin:django_jobs_job_history"
        return HttpResponseRedirect(
            reverse(name, args=[object_id], current_app=self.admin_site.name)
        )
