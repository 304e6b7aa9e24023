"""The actions on runs of workflows and on their steps. Each calls ``lifecycle.operations``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..api import replay_problem
from ..conf import conf
from ..domain.states import LIVE, PENDING, JobState
from ..domain.workflows import WAIT, WorkflowState
from ..exceptions import JobsError
from ..lifecycle.operations import OperationResult, later
from ..models import Job, JobStatus
from .base.actions import OperatorAction
from .base.search import OUTSIDE_HISTORY
from .forms.fields import JsonText, reason_field, text_field
from .operator_actions import ReasonForm, refused_retry


class WhyForm(forms.Form):
    reason = reason_field(_("Stored with the step and in the history."), required=True)


FORM_FIELDS: dict[str, Callable[[], forms.Field]] = {
    "bool": partial(forms.BooleanField, required=False),
    "int": forms.IntegerField,
    "float": forms.FloatField,
    "str": partial(forms.CharField, required=False),
}
"""The fields that a ``wait`` step can declare, by their type."""
PREFIX = "data_"
APPROVED = "approved"
"""The declared field that makes a ``wait`` step an approval."""


class SignalForm(forms.Form):
    """The data is JSON, or what the ``wait`` step declares, if the rows have only one of those."""

    name = text_field(_("Signal"), 200)
    value = JsonText(
        label=_("Data"),
        required=False,
        help_text=_('JSON, such as {"approved": true}. The handler gets it. Empty: none.'),
    )
    reason = reason_field(_("Optional. Stored in the history."))
    awaited: str | None = None
    declared: Mapping[str, str] | None = None

    def fill(self, rows: QuerySet[Any]) -> None:
        fields = KeyTextTransform("fields", "payload")
        kinds = rows.order_by().values_list("awaits", "job_type", fields).distinct()[:2]
        (self.awaited, job_type, text), *others = list(kinds) or [(None, "", None)]
        if others:
            self.awaited = None
        elif job_type == WAIT:
            self.declared = _declared(text)
        if self.declared is None:
            self.fields["name"].initial = self.awaited
            return
        del self.fields["name"], self.fields["value"]
        typed = {f"{PREFIX}{name}": FORM_FIELDS[kind]() for name, kind in self.declared.items()}
        for key, field in typed.items():
            field.label = key.removeprefix(PREFIX)
        self.fields = {**typed, **self.fields}

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if self.declared is None:
            return given
        data = {
            name: given.pop(f"{PREFIX}{name}")
            for name in self.declared
            if f"{PREFIX}{name}" in given
        }
        return {"name": self.awaited, "value": data, **given}


NO_APPROVAL = _(
    "This needs jobs that wait for one approval: steps whose signal declares the field “approved”, "
    "with the same fields. For others, use Signal."
)


class DecisionForm(SignalForm):
    """Approves or rejects: the data has what else the step declares."""

    def fill(self, rows: QuerySet[Any]) -> None:
        super().fill(rows)
        self.fields = {
            name: field
            for name, field in self.fields.items()
            if name not in ("name", "value", f"{PREFIX}{APPROVED}")
        }

    def clean(self) -> dict[str, Any]:
        given = super().clean()
        if self.declared is None or APPROVED not in self.declared:
            self.add_error("reason", NO_APPROVAL)
        return given


class RejectionForm(DecisionForm):
    def fill(self, rows: QuerySet[Any]) -> None:
        super().fill(rows)
        self.fields["reason"].required = True


def _declared(text: str | None) -> dict[str, str] | None:
    with suppress(ValueError, RecursionError):
        match json.loads(text or "null"):
            case [*pairs] if pairs and all(map(_is_field, pairs)):
                return dict(pairs)
    return None


def _is_field(pair: Any) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and pair[1] in [*FORM_FIELDS]
    )


def waiting_for_person() -> QuerySet[Any]:
    """The jobs of ``wait`` steps that declare fields, of which each waits for its signal."""
    waiting = Job.objects.using(conf().database).filter(status=JobStatus.WAITING, job_type=WAIT)
    return waiting.filter(awaits__isnull=False, payload__has_key="fields")


def approvals(**of: Any) -> set[int]:
    """The ids of the jobs, among those ``of`` a run or with an id, that wait for an approval."""
    asked = waiting_for_person().filter(payload__fields__contains=[[APPROVED, "bool"]], **of)
    return set(asked.values_list("pk", flat=True))


def is_awaiting(job: Any) -> bool:
    return job.status in LIVE and job.awaits is not None


def waits_for_approval(job: Any) -> bool:
    """Read once for a row, of which three buttons ask it."""
    if not hasattr(job, "for_approval"):
        waits = is_awaiting(job) and job.job_type == WAIT
        job.for_approval = waits and bool(approvals(pk=job.pk))
    return bool(job.for_approval)


def _why_no_decision(rows: QuerySet[Any]) -> str:
    form = DecisionForm()
    form.fill(rows)
    return "" if APPROVED in (form.declared or ()) else str(NO_APPROVAL)


def _name_of_step(job: Any) -> str:
    if job.step is None or job.workflow_run is None:
        return str(job)
    return gettext("step %(step)s of %(run)s") % {"step": job.step, "run": job.workflow_run}


def _skip(ids: list[int], *, actor: Any, reason: str) -> OperationResult:
    """Skip each step separately, so that a refused one does not stop the others."""
    from ..lifecycle.operations import workflows

    result = OperationResult()
    for job in Job.objects.using(conf().database).filter(pk__in=ids).only("workflow_run", "step"):
        if job.workflow_run_id is None or job.step is None:
            result.refused[job.pk] = gettext("it is not a step of a workflow")
            continue
        try:
            skipped = workflows.skip(job.workflow_run_id, job.pk, actor=actor, reason=reason)
        except PermissionDenied as error:  # that of a step: others may be skipped
            result.refused[job.pk] = str(error)
            continue
        if skipped.done:
            result.done.append(job.pk)
        else:
            result.refused[job.pk] = skipped.refused[job.workflow_run_id]
    return result


def _signal(
    ids: list[int], *, actor: Any, name: str, value: Any, reason: str, **decision: bool
) -> OperationResult:
    from ..lifecycle.operations import signals
    from ..lifecycle.operations.jobs import name_of

    result = OperationResult()
    data = json.loads(value) if isinstance(value, str) and value else value or None
    if isinstance(value, dict):
        data = {**value, **decision, "by": name_of(actor), "reason": reason}
    for pk in ids:
        try:
            sent = signals.signal(pk, name, data, actor=actor, reason=reason)
        except (JobsError, ValueError) as error:
            result.refused[pk] = str(error)
        else:
            result.done += sent.done
            result.refused.update(sent.refused)
    return result


def _has_failed_steps(run: Any) -> bool:
    """Whether a retry finds something to start again, also while other steps still run."""
    if refused_retry(run.pk):
        return False
    if run.status != WorkflowState.RUNNING:
        return bool(run.status != WorkflowState.SUCCEEDED)
    recent = OUTSIDE_HISTORY | Q(finished_at__gte=run.started_at)
    ended = (JobState.DEAD, JobState.CANCELLED)
    return bool(run.steps.filter(recent, status__in=ended, skipped=None).exists())


CANCEL_RUN = OperatorAction(
    action="cancel_workflow_runs",
    permission="cancel",
    label=_("Cancel"),
    question=_("Cancel workflow runs?"),
    explanation=_(
        "Steps that have not started are cancelled at once, and running ones are asked to stop. No "
        "other step starts, and nothing is undone."
    ),
    execute=later("workflows.cancel"),
    done=lambda n: ngettext("%(count)s run was cancelled.", "%(count)s runs were cancelled.", n),
    asked=lambda n: ngettext(
        "%(count)s run is cancelled when its running steps have stopped.",
        "%(count)s runs are cancelled when their running steps have stopped.",
        n,
    ),
    logged="cancelled",
    named_by="name",
    applies=lambda run: run.status == WorkflowState.RUNNING,
    form=ReasonForm,
)
RETRY_RUN = OperatorAction(
    action="retry_workflow_runs",
    permission="retry",
    label=_("Retry from the failed steps"),
    question=_("Retry workflow runs?"),
    explanation=_(
        "The failed and the cancelled steps start again, and what was skipped because of them "
        "comes back. The other steps stay as they ended."
    ),
    execute=partial(later("workflows.retry"), check=replay_problem),
    done=lambda n: ngettext("%(count)s run was retried.", "%(count)s runs were retried.", n),
    logged="retried",
    named_by="name",
    applies=_has_failed_steps,
    form=ReasonForm,
)
SKIP_STEP = OperatorAction(
    action="skip_steps",
    permission="skip",
    label=_("Skip"),
    question=_("Skip steps of workflows?"),
    explanation=_(
        "Only steps that have not started, that failed or that were cancelled can be skipped. The "
        "steps after them continue as if they had succeeded, without their results."
    ),
    execute=_skip,
    done=lambda n: ngettext("%(count)s step was skipped.", "%(count)s steps were skipped.", n),
    logged="skipped",
    restarts=True,
    applies=lambda job: (
        job.step is not None
        and job.skipped is None
        and job.status in {*PENDING, JobState.DEAD, JobState.CANCELLED}
    ),
    form=WhyForm,
)
SIGNAL = OperatorAction(
    action="signal_jobs",
    permission="signal",
    label=_("Signal"),
    question=_("Send a signal to jobs?"),
    explanation=_(
        "A job that waits for the signal continues with the data. Any other job that has not ended "
        "gets it when it waits for it. A job keeps the first signal of each name."
    ),
    execute=_signal,
    done=lambda n: ngettext("%(count)s job got the signal.", "%(count)s jobs got the signal.", n),
    logged="signalled",
    applies=lambda job: is_awaiting(job) and not waits_for_approval(job),
    form=SignalForm,
    fill=lambda form, rows: form.fill(rows),
    row_name=_name_of_step,
    unlogged=frozenset({"value"}),
)
APPROVE = SIGNAL._replace(
    action="approve_steps",
    label=_("Approve"),
    question=_("Approve steps of workflows?"),
    explanation=_("The steps after it learn that it was approved, by whom and why."),
    execute=partial(_signal, approved=True),
    done=lambda n: ngettext("%(count)s step was approved.", "%(count)s steps were approved.", n),
    logged="approved",
    applies=waits_for_approval,
    form=DecisionForm,
    caution=_why_no_decision,
)
REJECT = APPROVE._replace(
    action="reject_steps",
    label=_("Reject"),
    question=_("Reject steps of workflows?"),
    explanation=_("The steps after it learn that it was rejected, by whom and why."),
    execute=partial(_signal, approved=False),
    done=lambda n: ngettext("%(count)s step was rejected.", "%(count)s steps were rejected.", n),
    logged="rejected",
    form=RejectionForm,
)
