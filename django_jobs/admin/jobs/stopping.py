"""The action that stops running jobs by force, and whom else it may hit."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ...domain.states import JobState
from ...lifecycle.operations import later
from ...models import Worker
from ...separators import number_text
from ..base.actions import OperatorAction
from ..fleet.jobs_in_hand import started
from ..operator_actions import ReasonForm


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
