"""The actions on runs of workflows and on their steps. Each calls ``lifecycle.operations``."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from ..api import replay_problem
from ..conf import conf
from ..domain.states import LIVE, PENDING, JobState
from ..domain.workflows import WorkflowState
from ..exceptions import JobsError
from ..lifecycle.operations import signals, workflows
from ..lifecycle.operations.jobs import OperationResult
from ..models import Job
from .base.actions import OperatorAction
from .base.search import OUTSIDE_HISTORY
from .forms.fields import JsonText
from .operator_actions import ReasonForm
from .restarts import refused_retry


class WhyForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason"),
        max_length=300,
        help_text=_("Stored with the step and in the history."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class SignalForm(forms.Form):
    name = forms.CharField(
        label=_("Signal"), max_length=200, widget=forms.TextInput(attrs={"class": "vTextField"})
    )
    value = JsonText(
        label=_("Data"),
        required=False,
        help_text=_('JSON, such as {"approved": true}. The handler gets it. Empty: none.'),
    )
    reason = forms.CharField(
        label=_("Reason"),
        max_length=300,
        required=False,
        help_text=_("Optional. Stored in the history."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


def _skip(ids: list[int], *, actor: Any, reason: str) -> OperationResult:
    """Skip each step separately, so that a refused one does not stop the others."""
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


def _signal(ids: list[int], *, actor: Any, name: str, value: str, reason: str) -> OperationResult:
    result = OperationResult()
    data = json.loads(value) if value else None
    for pk in ids:
        try:
            sent = signals.signal(pk, name, data, actor=actor, reason=reason)
        except (JobsError, ValueError) as error:
            result.refused[pk] = str(error)
        else:
            result.done += sent.done
            result.refused.update(sent.refused)
    return result


def _awaited(jobs: QuerySet[Any]) -> dict[str, str]:
    """The signal that all of the jobs wait for, if there is one."""
    names = set(jobs.order_by().values_list("awaits", flat=True).distinct()[:2])
    (name,) = names if len(names) == 1 else (None,)
    return {"name": name} if name else {}


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
    execute=workflows.cancel,
    done=ngettext_lazy("%(count)s run was cancelled.", "%(count)s runs were cancelled.", "number"),
    asked=ngettext_lazy(
        "%(count)s run is cancelled when its running steps have stopped.",
        "%(count)s runs are cancelled when their running steps have stopped.",
        "number",
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
    execute=partial(workflows.retry, check=replay_problem),
    done=ngettext_lazy("%(count)s run was retried.", "%(count)s runs were retried.", "number"),
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
    done=ngettext_lazy("%(count)s step was skipped.", "%(count)s steps were skipped.", "number"),
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
    done=ngettext_lazy("%(count)s job got the signal.", "%(count)s jobs got the signal.", "number"),
    logged="signalled",
    applies=lambda job: job.status in LIVE and job.awaits is not None,
    form=SignalForm,
    initial=_awaited,
    unlogged=frozenset({"value"}),
)
