"""Runs of workflows: the list, and the page of one with its graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.states import LIVE, JobState
from ...domain.workflows import WorkflowState
from ...models import Job, WorkflowDefinition, WorkflowRun
from ...separators import number_text
from ..base.actions import OperatorAction
from ..base.formatting import (
    MOST_COUNTED,
    ago,
    badge,
    choice_badge,
    column,
    counted,
    duration,
    list_url,
    moment_column,
    one_line,
    preformatted,
    text_column,
)
from ..base.json_display import document, hidden, texts
from ..base.model_admin import CappedCount, ConsoleAdmin, allowed_by, section
from ..base.search import OUTSIDE_HISTORY, show, workflow_run_search
from ..layout.console_page import ConsoleView
from ..layout.tables import Column, Table
from ..lists.change_list import NewestList, Searched
from ..lists.filters import ListFilter, StatusFilter, WorkflowFilter
from ..operator_actions import DISMISS, refused_steps
from ..workflow_actions import (
    APPROVE,
    CANCEL_RUN,
    REJECT,
    RETRY_RUN,
    SIGNAL,
    SKIP_STEP,
    approvals,
    is_awaiting,
    waiting_for_person,
)

if TYPE_CHECKING:
    from .steps import Counts


class WorkflowRunList(NewestList):
    """The few runs that are running have an index, and so has the name of a workflow."""

    def searched(self, request: HttpRequest, chosen: Mapping[str, str]) -> Searched | None:
        if self.query or chosen.get("status", WorkflowState.RUNNING) == WorkflowState.RUNNING:
            return None
        if name := chosen.get("name"):
            return Searched(rows=Q(name=name), column="id", name=_("runs of the workflow"))
        return Searched(rows=Q(), column="id", name=_("workflow runs"))


WAITS = _("waits for a person")


class WaitsFilter(ListFilter):
    title = _("waits")
    parameter_name = "waits"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (("person", _("for a person")),)

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return rows.filter(pk__in=waiting_for_person().values("workflow_run"))


@admin.register(WorkflowRun)
class WorkflowRunAdmin(ConsoleAdmin):
    """Runs, newest first. They change by ``lifecycle.operations`` only."""

    change_form_template = "admin/django_jobs/workflow/run.html"
    list_display = (
        "number",
        "state",
        "workflow_name",
        "progress_text",
        "started_ago",
        "took",
        "reason_line",
    )
    list_filter = (StatusFilter, WorkflowFilter, WaitsFilter)
    list_class = WorkflowRunList
    list_select_related = ("definition",)
    unread = ("payload", "compensations", "definition__graph")
    search_fields = ("id",)  # shows the box; get_search_results does the search
    search_help_text = _("Ids of runs.")
    lookups_allowed = ConsoleAdmin.lookups_allowed | {"definition__id__exact"}
    empty = _("No workflow has run yet. start() of a workflow, a chain or a group makes a run.")
    operator_actions = (CANCEL_RUN, RETRY_RUN)
    views = (
        ConsoleView(
            *("start/", "workflows.starting.start_view", "django_jobs_workflowrun_start"),
            ("start",),
        ),
    )

    has_view_permission = allowed_by("view_workflowrun")
    has_cancel_permission = allowed_by("cancel_workflowrun")
    has_retry_permission = allowed_by("retry_workflowrun")
    has_start_permission = allowed_by("start_workflow")

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        from .starting import PERMISSION, start_url

        tools = [(_("Start a run"), start_url(self), "addlink")]
        return {"tools": tools if request.user.has_perm(PERMISSION) else []}

    def annotations(self) -> dict[str, Any]:
        jobs = Job.objects.using(conf().database).filter(workflow_run=OuterRef("pk"))
        steps = jobs.filter(OUTSIDE_HISTORY | Q(finished_at__gte=OuterRef("started_at")))
        return {
            "steps_": CappedCount(steps),
            "live_": CappedCount(jobs.filter(status__in=LIVE)),
            "asks_": Exists(waiting_for_person().filter(workflow_run=OuterRef("pk"))),
        }

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        search = workflow_run_search(search_term, request.user)
        show(self, request, search)
        if search.problems:
            return queryset.none(), False
        return (queryset.filter(pk__in=search.numbers) if search.terms.numbers else queryset), False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        names = {
            "tenant": "tenant_text",
            "idempotency_key": "key_text",
            "finished_at": "finished",
            "cancel_requested_at": "cancel_requested",
        }
        more = tuple(shown for column, shown in names.items() if getattr(obj, column, None))
        reason = ("reason_text",) if getattr(obj, "reason", "") else ()
        facts = ("state", "definition_text", "started", "took", *more)
        return (section(None, facts, *reason),)

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        from .picture import now_of, picture_of
        from .steps import MOST_STEPS, compensations_of, counts_of, steps_of

        columns = texts(obj, ("payload", "compensations"))
        seen = request.user.has_perm("django_jobs.view_job_payload")
        title = str(_("Payload"))
        steps, visible = steps_of(obj), obj.visible
        counts = counts_of(obj)
        picture = picture_of(obj, steps, visible, obj.read_at, self._of_steps(request, obj))
        return {
            **super().page_context(request, obj),
            "picture": picture,
            "jobs_url": list_url(self.admin_site, Job),
            "progress": {
                **{"ended": counts.ended, "total": counts.total},
                "parts": _parts(counts.by_state),
            },
            # The page of 10,000 steps takes half a second.
            "refresh_seconds": None if obj.finished_at else 5 if counts.total <= 1_000 else 30,
            "most_steps": MOST_STEPS if steps.cut else None,
            "facts": now_of(steps, visible, obj.read_at),
            "documents": [document(title, *columns["payload"]) if seen else hidden(title)],
            "tables": [
                picture["table"],
                *([_by_type(counts)] if steps.cut else []),
                compensations_of(columns["compensations"][0]),
            ],
        }

    def _of_steps(self, request: HttpRequest, run: Any) -> list[OperatorAction]:
        """The actions on steps of ``run`` that the user may take: those of the list of jobs."""
        if not self.admin_site.is_registered(Job):  # a project's own site may leave it out
            return []
        jobs = self.admin_site.get_model_admin(Job)
        if not jobs.has_view_permission(request):
            return []
        allowed = jobs.get_actions(request)
        refused = refused_steps(run.pk)
        skip = SKIP_STEP._replace(
            applies=lambda step: SKIP_STEP.applies(step) and not refused(step.pk)
        )
        has_ended = run.status != WorkflowState.RUNNING
        dismiss = DISMISS._replace(
            applies=lambda step: has_ended and step.status == JobState.DEAD
        )  # one look at the run for all of its steps
        asked = cache(partial(approvals, workflow_run=run))
        signal = SIGNAL._replace(applies=lambda step: is_awaiting(step) and step.pk not in asked())
        approve, reject = (
            action._replace(applies=lambda step: is_awaiting(step) and step.pk in asked())
            for action in (APPROVE, REJECT)
        )
        actions = (approve, reject, signal, skip, dismiss)
        return [action for action in actions if action.action in allowed]

    number = column(_("number"), lambda run: f"#{run.pk}")

    workflow_name = column(
        _("workflow"),
        lambda run: one_line(str(run.name if run.definition is None else run.definition)),
    )

    @admin.display(description=_("workflow"))
    def definition_text(self, run: Any) -> str:
        if run.definition is None:
            return gettext("none: a chain, a group, or steps of a handler")
        return str(run.visible.link(WorkflowDefinition, run.definition.pk, str(run.definition)))

    @admin.display(description=_("status"))
    def state(self, run: Any) -> str:
        if run.asks_:
            return badge("waiting", WAITS)
        return choice_badge(run, "status")

    @admin.display(description=_("steps ended"))
    def progress_text(self, run: Any) -> str:
        if run.steps_ > MOST_COUNTED:
            numbers = {"left": counted(run.live_), "total": counted(run.steps_)}
            if not run.live_:
                return gettext("all of %(total)s") % numbers
            return gettext("%(left)s of %(total)s left") % numbers
        ended = run.steps_ - run.live_
        return gettext("%(ended)s of %(total)s") % {
            "ended": number_text(ended),
            "total": number_text(run.steps_),
        }

    started_ago = moment_column("started_at", _("started"), ago)
    took = column(
        _("took"), lambda run: duration((run.finished_at or run.read_at) - run.started_at)
    )
    reason_line = text_column("reason", _("reason"), one_line)
    reason_text = text_column("reason", _("reason"), preformatted)
    tenant_text = text_column("tenant", _("tenant"))
    key_text = text_column("idempotency_key", _("idempotency key"))
    started = moment_column("started_at", _("started"))
    finished = moment_column("finished_at", _("finished"))
    cancel_requested = moment_column("cancel_requested_at", _("cancel requested"))


def _parts(by_state: Any) -> list[str]:
    from .picture import STATES, state_label

    return [
        format_html("{} {}", badge(state, state_label(state)), number_text(by_state[state]))
        for state in STATES
        if by_state[state]
    ]


def _by_type(counts: Counts) -> Table:
    """The job types with the number of their steps, and of those in each state."""
    rows = [
        (
            job_type,
            number_text(by_state.total()),
            format_html_join("", "<span>{}</span>", ((one,) for one in _parts(by_state))),
        )
        for job_type, by_state in counts.by_type.items()
    ]
    columns = (
        *(Column(_("Job type")), Column(_("Steps"), number=True)),
        Column(_("States"), cells="jobs-progress"),
    )
    return Table(_("All steps by job type"), columns, rows, id="jobs-types")
