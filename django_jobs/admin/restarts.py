"""Whether a step of a workflow can be replayed, skipped or dismissed, for the pages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db.models import Exists, OuterRef, Q

from ..conf import conf
from ..domain.workflows import WorkflowState
from ..models import JobStatus, WorkflowRun

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
