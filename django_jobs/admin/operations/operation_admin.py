"""The list of operations, and the page of one: its progress, and the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.states import BulkState
from ...lifecycle.operations import OperationResult, later
from ...lifecycle.scope import Scope
from ...models import BulkAction, BulkOperation
from ...models.bulk_operation import PERMISSIONS
from ...separators import number_text
from ..base.actions import OperatorAction, by_id
from ..base.formatting import (
    Visible,
    ago,
    badge,
    column,
    joined,
    moment_column,
    one_line,
    refusal_text,
    text_column,
)
from ..base.model_admin import ConsoleAdmin, allowed_by, section
from ..layout.console_page import ConsoleView
from ..layout.tables import Column, Table
from ..lists.filters import StatusFilter
from .background import PLAN, described, may_replay
from .progress import fraction_of, links, numbers, plan_text, sentence

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

CODENAMES = [permission.partition(".")[2] for permission in PERMISSIONS.values()]
REFRESH_SECONDS = 3


def _permitted(
    change: Callable[..., list[int]], refusal: _StrOrPromise
) -> Callable[..., OperationResult]:
    """What executes ``change`` on the operations whose action the actor may do to jobs."""
    execute = by_id(change, refusal)

    def permitted(ids: list[int], *, actor: Any, **given: Any) -> OperationResult:
        rows = BulkOperation.objects.using(conf().database).filter(pk__in=ids)
        refused = [row.pk for row in rows.only("action") if not _may(actor, row)]
        result = execute([pk for pk in ids if pk not in refused], actor=actor, **given)
        result.refused.update(
            dict.fromkeys(refused, gettext("you may not do to jobs what it does"))
        )
        return result

    return permitted


def _may(user: Any, operation: Any) -> bool:
    return bool(user.has_perm(PERMISSIONS[operation.action]))


STOP = OperatorAction(
    action="stop_operations",
    permission="operate",
    label=_("Stop"),
    question=_("Stop operations?"),
    explanation=_(
        "The current chunk is completed. Jobs that were changed stay changed, and the rest "
        "can be continued later."
    ),
    execute=_permitted(later("bulk.stop"), _("it has ended, or is being stopped")),
    done=lambda n: ngettext(
        "%(count)s operation was asked to stop.", "%(count)s operations were asked to stop.", n
    ),
    logged="asked to stop",
    named_by="action terms progress",
    applies=lambda operation: operation.is_unfinished and not operation.stop_requested_by,
)
CONTINUE = OperatorAction(
    action="continue_operations",
    permission="operate",
    label=_("Continue"),
    question=_("Continue operations?"),
    explanation=_(
        "A stopped or failed operation continues after the last job that it examined, with "
        "your permissions. Jobs that no longer match are left alone. A replay plan begins with "
        "its first wave again."
    ),
    execute=_permitted(later("bulk.resume"), _("it was not stopped")),
    done=lambda n: ngettext("%(count)s operation continues.", "%(count)s operations continue.", n),
    logged="continued",
    named_by="action terms progress",
    applies=lambda operation: operation.status in (BulkState.STOPPED, BulkState.FAILED),
)


@admin.register(BulkOperation)
class BulkOperationAdmin(ConsoleAdmin):
    list_display = (
        "number",
        "what",
        "state",
        "which_line",
        "share",
        "skipped_count",
        "who",
        "made_ago",
    )
    list_filter = (StatusFilter,)
    operator_actions = (STOP, CONTINUE)
    scoped_by: ClassVar[Any] = {"scope": "terms"}
    views = (ConsoleView("plan/", "operations.replay_plan.plan_view", PLAN, ("plan",)),)

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("django_jobs/operations.css",)}

    fieldsets = (
        section(None, ("what", "state", "who", "made"), ("started", "finished", "which", "reason")),
    )

    has_operate_permission = allowed_by(*CODENAMES)
    has_view_permission = allowed_by("view_bulkoperation", *CODENAMES)

    def in_scope(self, scope: Scope) -> Q:
        return Q(terms__scope=scope.as_term())

    def has_plan_permission(self, request: HttpRequest) -> bool:
        return may_replay(request)

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        context = super().page_context(request, obj)
        if obj is None:
            return context
        if not _may(request.user, obj):
            context["operator_actions"] = []
        refresh = {"refresh_seconds": REFRESH_SECONDS} if obj.is_unfinished else {}
        return {**context, **refresh, "report": self.report(obj)}

    def report(self, operation: Any) -> dict[str, Any]:
        """What the page says about the progress, with numbers as people read them."""
        awaited = [job for job, _attempt in operation.progress.get("awaited", [])]
        is_complete = operation.status == BulkState.COMPLETED
        fraction = None if is_complete else fraction_of(operation)
        return {
            "sentence": sentence(operation),
            "fraction": fraction,
            "percent": None if fraction is None else number_text(fraction, ".0%"),
            "numbers": numbers(operation),
            "plan": plan_text(operation),
            "awaited": _jobs(operation.visible, awaited[:5]) if operation.is_unfinished else "",
            "links": links(operation, operation.visible),
            "reasons": _reasons(operation),
        }

    number = column(_("number"), lambda operation: f"#{operation.pk}")

    @admin.display(description=_("action"))
    def what(self, operation: Any) -> str:
        label = str(operation.get_action_display())
        if operation.action == BulkAction.REPRIORITIZE:
            return f"{label}: {operation.arguments['priority']}"
        return gettext("%(label)s by plan") % {"label": label} if operation.plan else label

    which = column(
        _("which jobs"), lambda operation: described(operation.terms, operation.error_class)
    )
    which_line = column(
        _("which jobs"),
        lambda operation: one_line(described(operation.terms, operation.error_class)),
    )

    @admin.display(description=_("status"))
    def state(self, operation: Any) -> str:
        if operation.is_unfinished and operation.stop_requested_by:
            return badge("draining", gettext("stopping"))
        label = operation.get_status_display()
        if operation.status == BulkState.COMPLETED and operation.failed:
            failed = gettext("%(count)s failed again") % {"count": number_text(operation.failed)}
            return badge("caution", f"{label}, {failed}")
        return badge(operation.status, label)

    @admin.display(description=_("progress"))
    def share(self, operation: Any) -> str:
        fraction = fraction_of(operation)
        if fraction is None:
            return number_text(operation.done + operation.left)
        return format_html(
            "{} ({})", number_text(operation.done + operation.left), number_text(fraction, ".0%")
        )

    skipped_count = column(_("skipped"), lambda operation: number_text(operation.left))
    who = text_column("actor_name", _("requested by"))
    reason = text_column("reason", _("reason"))
    made = moment_column("created_at", _("requested"))
    made_ago = moment_column("created_at", _("requested"), ago)
    started = moment_column("started_at", _("started"))
    finished = moment_column("finished_at", _("finished"))


def _reasons(operation: Any) -> Table:
    rows = []
    for reason, entry in sorted(operation.reasons.items(), key=lambda item: -item[1]["count"]):
        count, jobs = entry["count"], _jobs(operation.visible, entry["jobs"])
        jobs = format_html("{}, …", jobs) if count > len(entry["jobs"]) else jobs
        rows.append((number_text(count), refusal_text(reason), jobs))
    columns = Column(_("Jobs"), number=True), Column(_("Reason")), Column(_("Such as"))
    title, css = _("Jobs that were not changed, with the reasons"), "jobs-timeline jobs-reasons"
    return Table(title, columns, rows, css=css, heading=1, id="jobs-left")


def _jobs(visible: Visible, ids: list[int]) -> str:
    return joined(", ", map(visible.job, ids))
