"""Why a step of a workflow can be neither replayed nor skipped, for the pages that offer it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..lifecycle.operations.workflows import retry_problem
from ..lifecycle.workflows.restarting import restart_problem, see_run
from ..models import JobStatus

UNREADABLE = ValueError, RecursionError, KeyError, TypeError
"""Compensations that were not written by a start are no reason for a page to fail."""


def refusal_of(job: Any) -> str | None:
    """Why ``job`` can be neither replayed nor skipped, if it is a step whose run refuses that."""
    if job.workflow_run_id is None or job.status in (JobStatus.RUNNING, JobStatus.SUCCEEDED):
        return None
    with suppress(*UNREADABLE):
        return restart_problem(see_run(job.workflow_run_id), job.step or "")
    return None


def refused_retry(run: int) -> str | None:
    """Why a run cannot be retried, or None."""
    with suppress(*UNREADABLE):
        seen = see_run(run)
        return None if seen is None else retry_problem(seen)
    return None


def refused_steps(run: int) -> Callable[[str | None], str | None]:
    """Returns of a step of the run why it can be neither replayed nor skipped."""
    try:
        seen = see_run(run)
    except UNREADABLE:
        return lambda step: None
    return lambda step: restart_problem(seen, step or "")
