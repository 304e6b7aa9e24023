"""The actions on jobs, queues and workers, each by ``lifecycle.operations``, and whether the run of
a step refuses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django import forms
from django.db.models import Exists, OuterRef, Q
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..api import replay_problem
from ..conf import conf
from ..domain.numbers import HIGHEST_PRIORITY, LOWEST_PRIORITY
from ..domain.states import LIVE, PENDING, JobState
from ..domain.workflows import WorkflowState
from ..lifecycle.operations import later
from ..models import (
    BulkAction,
    Job,
    JobStatus,
    Queue,
    Resource,
    Schedule,
    Tenant,
    WorkflowRun,
)
from ..separators import number_text
from .base.actions import Alternative, Choice, ModelAdmin, OperatorAction, by_name
from .base.formatting import list_url
from .base.search import DEAD
from .forms.fields import UntilField, reason_field
from .operations.background import in_background, may_replay, terms_of_list

UNREADABLE = ValueError, RecursionError, KeyError, TypeError
"""Compensations that were not written by a start are no reason for a page to fail."""

RUNNING = WorkflowRun.objects.filter(status=WorkflowState.RUNNING)
OF_NO_RUNNING_RUN = ~Q(Exists(RUNNING.filter(pk=OuterRef("workflow_run"))))
"""Jobs that are no steps, and the steps of runs that have ended."""


def run_goes_on(job: Any) -> bool:
    """Whether ``job`` is a step of a run that has not ended."""
    run = job.workflow_run_id
    return run is not None and RUNNING.using(conf().database).filter(pk=run).exists()


def refusal_of(job: Any) -> str | None:
    """Why ``job`` can be neither replayed nor skipped, if it is a step whose run refuses that."""
    if job.workflow_run_id is None or job.status in (JobStatus.RUNNING, JobStatus.SUCCEEDED):
        return None
    from ..lifecycle.workflows.restarting import restart_problem, see_run

    with suppress(*UNREADABLE):
        return restart_problem(see_run(job.workflow_run_id), job.id)
    return None


def refused_retry(run: int) -> str | None:
    from ..lifecycle.operations.workflows import retry_problem
    from ..lifecycle.workflows.restarting import see_run

    with suppress(*UNREADABLE):
        seen = see_run(run)
        return None if seen is None else retry_problem(seen)
    return None


def refused_steps(run: int) -> Callable[[int], str | None]:
    """Returns of a step of the run, by its id, why it can be neither replayed nor skipped."""
    from ..lifecycle.workflows.restarting import restart_problem, see_run

    try:
        seen = see_run(run)
    except UNREADABLE:
        return lambda step: None
    return lambda step: restart_problem(seen, step)


Pausable = type[Queue | Schedule | Resource | Tenant]

MOST_LINKED = 50
"""Replayed jobs that a link lists."""


class ReasonForm(forms.Form):
    reason = reason_field(_("Optional. Stored with the row and in the history."))


class PauseForm(ReasonForm):
    until = UntilField()


class PriorityForm(forms.Form):
    priority = forms.IntegerField(
        label=_("Priority"),
        min_value=LOWEST_PRIORITY,
        max_value=HIGHEST_PRIORITY,
        help_text=_("From -100 to 100. Jobs with a higher priority start sooner."),
        widget=forms.NumberInput(attrs={"class": "vIntegerField"}),
    )


def may_repeat(jobs: int) -> str:
    """What to look at before a replay, if this many jobs run at most once."""
    text = ngettext(
        "%(count)s job runs at most once: what its failed attempt has done is not known. A replay "
        "may do it twice, such as charge a card. Look first.",
        "%(count)s jobs run at most once: what their failed attempts have done is not known. A "
        "replay may do it twice, such as charge a card. Look first.",
        jobs,
    )
    return text % {"count": number_text(jobs)} if jobs else ""


def _replayed(page: Any, request: HttpRequest, done: Sequence[int]) -> list[tuple[str, str]]:
    """The list of the replayed jobs, and their failure if they were chosen by it."""
    from .failures.filters import failure_links

    site = page.admin_site
    links = failure_links(site, request)
    if site.is_registered(Job):  # a project's own site may leave it out
        text = ngettext("Show the job", "Show the jobs", len(done))
        if len(done) > MOST_LINKED:
            text = gettext("Show %(count)s of them") % {"count": number_text(MOST_LINKED)}
        ids = " ".join(map(str, sorted(done, reverse=True)[:MOST_LINKED]))
        links.insert(0, (text, list_url(site, Job, q=ids)))
    return links


CANCEL = OperatorAction(
    action="cancel_jobs",
    button=lambda n: ngettext("Cancel %(count)s job", "Cancel %(count)s jobs", n),
    permission="cancel",
    label=_("Cancel"),
    question=_("Cancel jobs?"),
    explanation=_(
        "Jobs that have not started are cancelled at once. A running job is asked to stop; how "
        "soon it stops depends on its handler. A cancelled job does not run again."
    ),
    execute=later("jobs.cancel"),
    done=lambda n: ngettext("%(count)s job was cancelled.", "%(count)s jobs were cancelled.", n),
    asked=lambda n: ngettext(
        "%(count)s running job was asked to stop.", "%(count)s running jobs were asked to stop.", n
    ),
    logged="cancelled",
    applies=lambda job: job.status in LIVE and job.cancel_requested_at is None,
    among=Q(status__in=sorted(LIVE), cancel_requested_at=None),
    form=ReasonForm,
    alternatives=(in_background(BulkAction.CANCEL),),
)
REPRIORITIZE = OperatorAction(
    action="reprioritize_jobs",
    permission="reprioritize",
    label=_("Change priority"),
    question=_("Change the priority of jobs?"),
    explanation=_("Only the priority of jobs that have not started can be changed."),
    execute=later("jobs.reprioritize"),
    done=lambda n: ngettext(
        "The priority of %(count)s job was changed.",
        "The priority of %(count)s jobs was changed.",
        n,
    ),
    logged="priority changed",
    applies=lambda job: job.status in PENDING,
    among=Q(status__in=sorted(PENDING)),
    form=PriorityForm,
    alternatives=(in_background(BulkAction.REPRIORITIZE),),
)
RUN_NOW = OperatorAction(
    action="run_jobs_now",
    button=lambda n: ngettext("Run %(count)s job now", "Run %(count)s jobs now", n),
    permission="run",
    label=_("Run now"),
    question=_("Run jobs now?"),
    explanation=_("Scheduled jobs become ready at once, before they are due."),
    execute=later("jobs.run_now"),
    done=lambda n: ngettext(
        "%(count)s job is ready to run.", "%(count)s jobs are ready to run.", n
    ),
    logged="made ready at once",
    applies=lambda job: job.status == JobState.SCHEDULED,
    among=Q(status=JobState.SCHEDULED),
    alternatives=(in_background(BulkAction.RUN_NOW),),
)
INSPECT = OperatorAction(
    action="inspect_jobs",
    permission="inspect",
    label=_("Show stack"),
    question=_("Ask running jobs for their stack?"),
    explanation=_(
        "The worker records which lines of code the handler is in, without any values. The "
        "page of the job shows the answer."
    ),
    execute=later("inspections.ask"),
    done=lambda n: ngettext(
        "%(count)s job was asked. Its page shows the answer within seconds.",
        "%(count)s jobs were asked. Their pages show the answers within seconds.",
        n,
    ),
    logged="asked for its stack",
    only_asks=True,
    applies=lambda job: job.status == JobState.RUNNING,
    among=Q(status=JobState.RUNNING),
)


def _offers_plan(page: ModelAdmin, request: HttpRequest, choice: Choice) -> bool:
    return may_replay(request) and bool(choice.ids) and _chosen(page, request, choice) is not None


def _chosen(page: ModelAdmin, request: HttpRequest, choice: Choice) -> dict[str, Any] | None:
    terms = terms_of_list(page, request) if choice.across else None
    return terms if terms or choice.more else {"ids": list(choice.ids)}


def _plan(
    page: ModelAdmin, request: HttpRequest, choice: Choice, given: Mapping[str, Any]
) -> HttpResponse:
    from .operations.replay_plan import PlanForm, plan_page

    terms = _chosen(page, request, choice)
    assert terms is not None
    max_id = choice.max_id if choice.across else max(choice.ids)
    form = PlanForm(initial={"reason": given.get("reason", "")})
    return plan_page(page, request, terms, max_id, form)


BY_PLAN = Alternative(
    name="plan",
    label=_("Replay by a plan"),
    explanation=_(
        "A plan begins with one job, waits for its outcome, and stops by itself if too many fail."
    ),
    offered=_offers_plan,
    preferred=lambda choice: choice.across and len(choice.ids) > 1,
    go=_plan,
)
REPLAY = OperatorAction(
    action="replay_jobs",
    button=lambda n: ngettext("Replay %(count)s job", "Replay %(count)s jobs", n),
    permission="replay",
    label=_("Replay"),
    question=_("Replay dead jobs?"),
    explanation=_(
        "Dead jobs go back to their queue with their counters at zero. Their runs are kept. A job "
        "stays dead if its handler no longer exists, does not accept its arguments, or if another "
        "job has its idempotency key."
    ),
    caution=lambda jobs: may_repeat(jobs.filter(at_most_once=True).count()),
    execute=partial(later("jobs.replay"), check=replay_problem),
    done=lambda n: ngettext(
        "%(count)s job was sent back to its queue.",
        "%(count)s jobs were sent back to their queues.",
        n,
    ),
    logged="replayed",
    leads_to=_replayed,
    restarts=True,
    applies=lambda job: job.status == JobState.DEAD,
    among=DEAD,
    form=ReasonForm,
    alternatives=(in_background(BulkAction.REPLAY), BY_PLAN),
)
DISMISS = OperatorAction(
    action="dismiss_jobs",
    button=lambda n: ngettext("Dismiss %(count)s job", "Dismiss %(count)s jobs", n),
    permission="dismiss",
    label=_("Dismiss"),
    question=_("Dismiss dead jobs?"),
    explanation=_(
        "Dead jobs that nobody will replay are cancelled. Their errors and runs are kept as long "
        "as those of other cancelled jobs. They cannot be replayed any more. A step of a workflow "
        "is dismissed once its run has ended."
    ),
    execute=later("dead_letters.dismiss"),
    done=lambda n: ngettext("%(count)s job was dismissed.", "%(count)s jobs were dismissed.", n),
    logged="dismissed",
    applies=lambda job: job.status == JobState.DEAD and not run_goes_on(job),
    among=DEAD & OF_NO_RUNNING_RUN,
    form=ReasonForm,
    alternatives=(in_background(BulkAction.DISMISS),),
)


def pause_action(model: Pausable, change: Callable[..., list[str]], **texts: Any) -> OperatorAction:
    """The action that pauses rows of ``model`` by ``change``, until a time if one is given."""
    return OperatorAction(
        action=f"pause_{model._meta.model_name}s",
        permission="pause",
        label=_("Pause"),
        execute=by_name(model, change, _("it is already paused"), takes_ids=model is Schedule),
        logged="paused",
        named_by="name",
        applies=lambda row: row.paused_at is None,
        form=PauseForm,
        **texts,
    )


def resume_action(
    model: Pausable, change: Callable[..., list[str]], **texts: Any
) -> OperatorAction:
    is_schedule = model is Schedule
    refusal = _("it is neither paused nor in error") if is_schedule else _("it is not paused")
    return OperatorAction(
        action=f"resume_{model._meta.model_name}s",
        permission="pause",
        label=_("Resume"),
        execute=by_name(model, change, refusal, takes_ids=is_schedule),
        logged="resumed",
        named_by="name",
        applies=lambda row: row.paused_at is not None or bool(is_schedule and row.error),
        **texts,
    )


PAUSE = pause_action(
    Queue,
    later("jobs.pause"),
    question=_("Pause queues?"),
    explanation=_(
        "Workers do not claim jobs from a paused queue. Running jobs are not stopped, and jobs can "
        "still be enqueued."
    ),
    done=lambda n: ngettext("%(count)s queue was paused.", "%(count)s queues were paused.", n),
)
RESUME = resume_action(
    Queue,
    later("jobs.resume"),
    question=_("Resume queues?"),
    explanation=_("Workers claim jobs from these queues again."),
    done=lambda n: ngettext("%(count)s queue was resumed.", "%(count)s queues were resumed.", n),
)


def _drain(**given: Any) -> OperatorAction:
    return OperatorAction(
        permission="stop",
        done=lambda n: ngettext(
            "%(count)s worker was asked to drain and stop.",
            "%(count)s workers were asked to drain and stop.",
            n,
        ),
        named_by="name",
        applies=lambda worker: not worker.has_ended and worker.drain_requested_at is None,
        **given,
    )


STOP = _drain(
    action="stop_workers",
    label=_("Drain the process"),
    question=_("Drain worker processes?"),
    explanation=_(
        "The worker claims no more jobs, waits for its running jobs, and exits. Its command starts "
        "another worker in its place. If all workers of a command are asked, the command ends."
    ),
    execute=later("jobs.stop_workers"),
    logged="asked to drain and stop",
)
STOP_COMMAND = _drain(
    action="stop_commands",
    label=_("Drain its command, all processes"),
    question=_("Drain the commands of these workers?"),
    explanation=_(
        "All worker processes of each command claim no more jobs, wait for their running "
        "jobs, and exit. Then the command ends with exit code 0. A service manager such as systemd "
        "or Kubernetes starts a new one."
    ),
    execute=later("jobs.stop_commands"),
    logged="asked to drain and stop, with its command",
)
STOP_HOST = _drain(
    action="stop_hosts",
    label=_("Drain its host, all commands"),
    question=_("Drain the hosts of these workers?"),
    explanation=_(
        "All worker processes on each host claim no more jobs, wait for their running jobs, "
        "and exit, and all commands there end with exit code 0. A service "
        "manager such as systemd or Kubernetes starts new ones, unless you stopped it before."
    ),
    execute=later("jobs.stop_hosts"),
    logged="asked to drain and stop, with its host",
)
