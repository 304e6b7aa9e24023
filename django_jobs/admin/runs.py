"""Finished attempts, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..conf import conf
from ..domain.search_terms import parsed
from ..lifecycle.history import RUNS
from ..lifecycle.scope import scope_of
from ..models import Job, Run, Worker
from .access.errors import HidesErrors, hidden_error, hide_in_run, may_see_errors
from .base.formatting import (
    ago,
    choice_badge,
    column,
    duration,
    moment_column,
    one_line,
    page_url,
    preformatted,
    text_column,
    usage,
)
from .base.history_list import HistoryAdmin, Part, PartitionFilter
from .base.json_display import hidden
from .base.model_admin import section
from .base.search import OF_RUNS, run_search, search_runs, show
from .job_sections.timeline import INTERRUPTED, gate_time_of, wait_of
from .layout.console_page import ConsoleView
from .lists.filters import FinishedSinceFilter, IdFilter, OutcomeFilter

COST = "django_jobs_run_cost"
LASTED = "gate_time", "waited", "ran", "used"
ERROR = _("Error"), ("error_type", "error_code", "fingerprint")


class RunPartitionFilter(PartitionFilter):
    table = RUNS


class RunWorkerFilter(IdFilter):
    """The runs of a worker. Without an index: it searches the part of the history that filters by
    other columns search."""

    title = _("worker number")
    parameter_name = "worker"
    column = "worker_id"
    model = Worker


@admin.register(Run)
class RunAdmin(HidesErrors, HistoryAdmin):
    words = ("gate",)
    views = (ConsoleView("cost/", "cost.cost_view", COST),)
    hide = staticmethod(hide_in_run)
    scoped_by: ClassVar[Any] = {"queue": "job__queue", "job_type": "job__job_type"}
    history = RUNS
    outside_history = Q(pk__in=())
    exported = (
        *("id", "job_id", "job_type", "attempt", "outcome", "worker_id", "available_at"),
        *("claimed_at", "started_at", "finished_at", "cpu_seconds", "max_rss_kb"),
        *("error_type", "error_code", "fingerprint", "error_message"),
    )

    list_display = ("id", "result", "job_number", "job_name", "number", "ended", "ran", "error")
    list_filter = (OutcomeFilter, FinishedSinceFilter, RunWorkerFilter, RunPartitionFilter)
    search_fields = ("id",)  # shows the box; get_search_results does the search
    search_help_text = _(
        "Ids of jobs of any age, code:503 or error:Timeout (its class, text or fingerprint)."
    )
    empty = _(
        "No runs yet. A worker writes one when an attempt ends. Start one: manage.py jobworker."
    )
    lookups_allowed = HistoryAdmin.lookups_allowed | {"job", "job__exact", "job__id__exact"}
    fieldsets = (
        section(None, ("job_number", "job_name", "number", "result"), "worker_name", "trace"),
        section(_("Times"), ("due", "ready", "claimed", "started", "finished"), LASTED),
        section(*ERROR, "message_text", "traceback_text"),
    )

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        tools = [(_("Cost by job type"), page_url(self.admin_site, COST), "")]
        is_limited = scope_of(request.user) is not None
        return {**super().list_context(request), "tools": [] if is_limited else tools}

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.fieldsets
        texts = ("hidden_texts",) if obj.errors_hidden else ("message_text", "traceback_text")
        shown: tuple[Any, ...] = self.fieldsets[:-1]
        if obj.errors_hidden or obj.error_type or obj.error_message:
            shown = (*shown, section(*ERROR, *texts))
        if obj.log is None:
            return shown
        # Handlers log tracebacks, too.
        if not may_see_errors(request.user):
            log = "hidden_texts"
        else:
            seen = request.user.has_perm("django_jobs.view_job_payload")
            log = "log_text" if seen else "hidden_log"
        return (*shown, section(_("Log"), log))

    hidden_texts = column(_("message"), lambda run: hidden_error())
    hidden_log = column(_("lines"), lambda run: hidden("").note)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        search = run_search(search_term, request.user)
        show(self, request, search)
        return search_runs(queryset, search), False

    def parts(self, chosen: Mapping[str, str | None], text: str) -> Sequence[Part]:
        terms = parsed(text, OF_RUNS)
        narrowed = terms.kinds or chosen.keys() - {FinishedSinceFilter.parameter_name}
        if terms.numbers or PartitionFilter.parameter_name in chosen or not narrowed:
            return ()
        return [Part(Q(), _("finished"), RUNS.name)]

    def annotations(self) -> dict[str, Any]:
        job = Job.objects.using(conf().database).filter(pk=OuterRef("job_id"))
        return {"job_type": Subquery(job.values("job_type")[:1])}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        match = request.resolver_match
        listed = match is not None and (match.url_name or "").endswith("_changelist")
        return rows.defer("traceback", "error_message", "log") if listed else rows

    job_number = column(_("job"), lambda run: str(run.visible.job(run.job_id)))
    job_name = column(
        _("job type"),
        lambda run: one_line(str(run.job_type or _("(the job was deleted)")), breaks=True),
    )
    number = column(_("attempt"), lambda run: int(run.attempt))
    result = column(_("outcome"), lambda run: choice_badge(run, "outcome"))

    @admin.display(description=_("worker"))
    def worker_name(self, run: Any) -> str:
        workers = Worker.objects.using(conf().database).in_bulk([run.worker_id])
        return str(run.visible.worker(run.worker_id, workers))

    ended = moment_column("finished_at", _("finished"), ago)

    @admin.display(description=_("held at gates"))
    def gate_time(self, run: Any) -> str:
        return duration(gate_time_of(run.available_at, run.ready_at, _earlier_end(run)))

    @admin.display(description=_("waited for a worker"))
    def waited(self, run: Any) -> str:
        end = _earlier_end(run)
        at_gates = gate_time_of(run.available_at, run.ready_at, end)
        return duration(wait_of(run.available_at, run.claimed_at, end) - at_gates)

    ran = column(_("ran"), lambda run: duration(run.duration))
    used = column(_("used"), usage)

    @admin.display(description=_("error"))
    def error(self, run: Any) -> str:
        code = f" [{run.error_code}]" if run.error_code else ""
        return one_line(f"{run.error_type}{code}")

    due = moment_column("available_at", _("due"))
    ready = moment_column("ready_at", _("ready"))
    claimed = moment_column("claimed_at", _("claimed"))
    started = moment_column("started_at", _("started"))
    finished = moment_column("finished_at", _("finished"))
    trace = text_column("traceparent", _("traceparent"))
    message_text = text_column("error_message", _("message"), preformatted)
    log_text = text_column("log", _("lines"), preformatted)
    traceback_text = text_column("traceback", _("traceback"), preformatted)


def _earlier_end(run: Any) -> datetime | None:
    """The end of the attempt before, if that was interrupted; read once."""
    if not hasattr(run, "earlier_end"):
        run.earlier_end = None
        if run.attempt > 1:
            earlier = Run.objects.using(run._state.db).filter(
                job_id=run.job_id,
                attempt=run.attempt - 1,
                outcome__in=INTERRUPTED,
                finished_at__range=(run.available_at, run.finished_at),
            )
            run.earlier_end = earlier.values_list("finished_at", flat=True).first()
    end: datetime | None = run.earlier_end
    return end
