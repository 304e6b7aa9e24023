"""Looks into running jobs for an operator."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now
from django.utils.translation import gettext_noop

from ...models import Inspection, Job, Worker
from ...models.database import jobs_connection
from ...models.worker import NOT_ENDED
from ..notifying import INSPECT, notify_after_commit
from ..scope import limited
from . import OperationResult
from .jobs import Actor, demand, name_of

LOOK_SECONDS = 0.05
SHOWN = timedelta(hours=1)


@limited
def ask(ids: Iterable[int], *, actor: Actor = None) -> OperationResult:
    """Ask workers for stacks of running jobs."""
    from .. import progress

    demand(actor, "django_jobs.inspect_job")
    wanted = list(ids)
    alias = jobs_connection().alias
    with transaction.atomic(using=alias):
        asked = progress.ask(wanted, name_of(actor))
        if asked:
            notify_after_commit(INSPECT)
    return OperationResult(
        done=[job for job in wanted if job in asked],
        refused={job: gettext_noop("it is not running") for job in wanted if job not in asked},
    )


def latest(job_id: int) -> Inspection | None:
    """The last question of the last hour about a job, with its answer if there is one. The table
    holds few other rows and has no index on jobs."""
    rows = Inspection.objects.using(jobs_connection().alias).filter(job_id=job_id)
    return rows.filter(asked_at__gt=Now() - SHOWN).order_by("-id").first()


def wait_for_answer(question: Inspection, timeout: float) -> Inspection:
    """Read the question until it is answered, its attempt ends, or ``timeout`` seconds are over."""
    until = time.monotonic() + timeout
    while question.answered_at is None and time.monotonic() < until and is_running(question):
        time.sleep(LOOK_SECONDS)
        question.refresh_from_db()
    return question


def is_running(question: Inspection) -> bool:
    running = Job.objects.using(question._state.db).filter(pk=question.job_id, status="running")
    return running.filter(attempt=question.attempt, worker_id=question.worker_id).exists()


def why_unanswered(question: Inspection) -> str:
    """Why there is no answer, as far as the tables know."""
    if not is_running(question):
        return gettext_noop("the attempt ended before its worker answered")
    worker = Worker.objects.using(question._state.db).filter(pk=question.worker_id)
    if not worker.filter(status__in=NOT_ENDED).exists():
        return gettext_noop("its worker has ended, and its jobs are about to be recovered")
    if worker.filter(lease_expires_at__lt=Now()).exists():
        return gettext_noop(
            "the lease of its worker has run out: its process or its machine is gone or stopped"
        )
    return gettext_noop(
        "its worker renews its lease, but the process did not answer: a handler may hold the GIL, "
        "its settler may wait for the database, or it runs a release without jobinspect"
    )
