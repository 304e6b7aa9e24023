"""The lists of all jobs and of dead letters, newest first, and the page of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...domain.states import JobState
from ...lifecycle.history import JOBS
from ...lifecycle.job_columns import LIVE_TABLE
from ...lifecycle.operations import later
from ...models import DeadLetter, Job, JobStatus, Worker
from ...separators import number_text
from ..base.actions import OperatorAction
from ..base.formatting import NOTHING, ago, column, duration, moment_column, one_line, page_url
from ..base.history_list import HistoryAdmin, Part, PartitionFilter
from ..base.model_admin import allowed_by, row_button
from ..base.search import HISTORY, OUTSIDE_HISTORY, Search, search_jobs
from ..failures import GROUP, GROUPS
from ..failures.filters import FingerprintFilter, failure_links
from ..fleet.jobs_in_hand import started
from ..layout.console_page import ConsoleView, is_unconfirmed
from ..lists.filters import (
    CreatedSinceFilter,
    ErrorFilter,
    FinishedSinceFilter,
    JobTypeFilter,
    QueueFilter,
    ScheduleFilter,
    StatusFilter,
    TenantFilter,
    WorkerFilter,
    WorkflowOfStepFilter,
    WorkflowRunFilter,
    with_error,
)
from ..operator_actions import CANCEL, DISMISS, INSPECT, REPLAY, REPRIORITIZE, RUN_NOW, ReasonForm
from ..workflow_actions import APPROVE, REJECT, SIGNAL, SKIP_STEP
from .columns import TagFilter
from .detail import JobPage


def bystanders(jobs: QuerySet[Any]) -> str:
    """How many others run in the processes that may be killed, as of the last heartbeat. An
    isolated job has a process of its own."""
    chosen = dict(jobs.filter(status=JobState.RUNNING).values_list("pk", "worker"))
    workers = Worker.objects.using(jobs.db).filter(pk__in=set(chosen.values()))
    count = 0
    for pk, stored in workers.values_list("pk", "started_jobs"):
        alone = {job for job, (_seconds, memory) in started(stored).items() if memory is not None}
        if any(worker == pk and job not in alone for job, worker in chosen.items()):
            count += len(started(stored).keys() - alone - chosen.keys())
    text = ngettext(
        "%(count)s other job runs in the same process. If that is killed, it runs again, or is "
        "dead if it runs at most once.",
        "%(count)s other jobs run in the same process. If that is killed, they run again, or are "
        "dead if they run at most once.",
        count,
    )
    return text % {"count": number_text(count)} if count else ""


STOP_BY_FORCE = OperatorAction(
    action="stop_jobs",
    button=lambda n: ngettext("Stop %(count)s job by force", "Stop %(count)s jobs by force", n),
    permission="stop",
    label=_("Stop by force"),
    question=_("Stop running jobs by force?"),
    explanation=_(
        "An exception is raised in the handler once its worker knows of this, at its next "
        "heartbeat. If it still runs a second later, its process is killed. The job is cancelled "
        "and does not run again; a job that succeeds before has succeeded."
    ),
    execute=later("jobs.stop"),
    done=lambda n: ngettext("%(count)s job was cancelled.", "%(count)s jobs were cancelled.", n),
    asked=lambda n: ngettext(
        "%(count)s running job is being stopped by force.",
        "%(count)s running jobs are being stopped by force.",
        n,
    ),
    logged="stopped by force",
    applies=lambda job: job.status == JobState.RUNNING and job.force_requested_at is None,
    among=Q(status=JobState.RUNNING, force_requested_at=None),
    form=ReasonForm,
    caution=bystanders,
)


class JobPartitionFilter(PartitionFilter):
    table = JOBS


INDEXED = {
    one.parameter_name for one in (WorkerFilter, WorkflowOfStepFilter, WorkflowRunFilter, TagFilter)
}
"""An index finds the jobs of these filters, of any age."""
EACH = {"id", "job_name", "arguments_line", "queue_name"}
OF_RUNNING = ("worker_name", "runs_for", "progress_line", "stop_button")
"""The columns of the jobs that run now, in place of what is the same in all of them."""
NEXT = JobState.SCHEDULED, JobState.BLOCKED, JobState.WAITING


@admin.register(Job)
class JobAdmin(HistoryAdmin, JobPage):
    history = JOBS
    outside_history = OUTSIDE_HISTORY
    list_display = (
        "id",
        "state",
        "job_name",
        "arguments_line",
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
    has_stop_permission = allowed_by("stop_job")
    for_all = (CANCEL,)
    in_rows = CANCEL, STOP_BY_FORCE
    operator_actions = (
        *(CANCEL, STOP_BY_FORCE, REPRIORITIZE, RUN_NOW, INSPECT, REPLAY, DISMISS),
        *(APPROVE, REJECT, SIGNAL, SKIP_STEP),
    )
    views = (
        ConsoleView(
            *("<int:job_id>/reveal/", "jobs.reveal.reveal_view", "django_jobs_job_reveal"),
            ("view", "reveal"),
        ),
        ConsoleView(
            *("<int:job_id>/file/", "jobs.files.file_view", "django_jobs_job_file"),
            ("view", "payload"),
        ),
        ConsoleView(
            *("<int:job_id>/edit/", "editing.edit.edit_view", "django_jobs_job_edit"),
            *(("view", "edit"), is_unconfirmed),
        ),
        ConsoleView(
            "enqueue/", "editing.enqueue.enqueue_view", "django_jobs_job_enqueue", ("enqueue",)
        ),
    )

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        columns = super().get_list_display(request)
        if request.GET.get(StatusFilter.parameter_name) != JobStatus.RUNNING:
            return columns
        return tuple(one for one in columns if one in EACH) + OF_RUNNING

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

    def parts(self, chosen: Mapping[str, str | None], text: str) -> Sequence[Part]:
        status = chosen.get("status")
        live_alone = chosen.keys() == {"status"} and status not in HISTORY
        other_reads = {*INDEXED, ErrorFilter.parameter_name, PartitionFilter.parameter_name}
        if text or not chosen or live_alone or other_reads & chosen.keys():
            return ()
        # Each has an index on the ids or the named column, so a few old rows are found among many.
        of_queue = {"queue": chosen["queue"]} if "queue" in chosen else {}
        of_type = {"job_type": chosen["job_type"]} if "job_type" in chosen else {}
        running, ready, dead = JobState.RUNNING, JobState.READY, JobState.DEAD
        parts = {
            (running,): Part(Q(status=running), JobStatus.RUNNING.label),
            (ready,): Part(Q(status=ready, **of_queue), JobStatus.READY.label),
            (dead,): Part(Q(status=dead, **(of_queue or of_type)), JobStatus.DEAD.label),
            NEXT: Part(Q(status__in=NEXT), _("scheduled, blocked or waiting"), LIVE_TABLE),
            HISTORY: Part(Q(status__in=HISTORY), _("succeeded or cancelled"), JOBS.name),
        }
        return [part for statuses, part in parts.items() if status is None or status in statuses]

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        from ..editing.enqueue import enqueue_url

        tools = [(_("Running now"), "?status=running", "")]
        if self.has_enqueue_permission(request):
            tools.append((_("Enqueue a job"), enqueue_url(self), "addlink"))
        return {**super().list_context(request), "tools": tools}

    urgency = column(_("priority"), lambda job: int(job.priority))
    worker_name = column(
        _("worker"), lambda job: str(job.visible.worker(job.worker_id, {job.worker_id: job.holder}))
    )
    runs_for = column(
        _("Runs for"), lambda job: gettext("claimed") if job.ran is None else duration(job.ran)
    )

    @admin.display(description=_("progress"))
    def progress_line(self, job: Any) -> str:
        if job.report is None:
            return NOTHING
        done = job.report.fraction
        shown = "" if done is None else f"{int(done * 100)} %"
        return one_line(" · ".join(filter(None, [shown, job.report.note])))

    stop_button = column(
        _("Stop"), lambda job: row_button(job.stops, job) if job.stops else NOTHING
    )
    due_in = moment_column("available_at", _("due"), ago)


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
    views = (
        ConsoleView(
            *("failures/", "failures.groups_page.groups_view", GROUPS, ("view",), is_unconfirmed)
        ),
        ConsoleView("failures/one/", "failures.group_page.group_view", GROUP),
    )

    def found(self, request: HttpRequest, rows: QuerySet[Any], search: Search) -> QuerySet[Any]:
        return search_jobs(rows, search, in_one_partition=True)

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        context = super().list_context(request)
        if FingerprintFilter.parameter_name in request.GET:
            context["gone"] = _("Those that did may have been replayed, dismissed or deleted.")
            context["gone_links"] = failure_links(self.admin_site, request)
        return context

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
        url = page_url(self.admin_site, "django_jobs_job_history", object_id)
        return HttpResponseRedirect(url)
