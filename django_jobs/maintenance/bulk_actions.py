"""What an operation on all jobs that match does to the jobs of one chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from django.db.models.functions import Now

from .. import registry
from ..api import replay_problem
from ..conf import conf
from ..lifecycle.operations import jobs as job_operations
from ..lifecycle.operations.jobs import Actor, OperationResult
from ..models import BulkAction, BulkOperation, Job, Worker
from ..models.worker import ALIVE

Execute = Callable[[list[int], BulkOperation, Actor], OperationResult]


def _cancel(ids: list[int], operation: BulkOperation, actor: Actor) -> OperationResult:
    why = operation.reason or f"cancelled by {operation.actor_name or 'a command'}"
    return job_operations.cancel(ids, actor=actor, reason=why)


def _reprioritize(ids: list[int], operation: BulkOperation, actor: Actor) -> OperationResult:
    return job_operations.reprioritize(ids, operation.arguments["priority"], actor=actor)


def _run_now(ids: list[int], operation: BulkOperation, actor: Actor) -> OperationResult:
    return job_operations.run_now(ids, actor=actor)


def _replay(ids: list[int], operation: BulkOperation, actor: Actor) -> OperationResult:
    check = partial(fleet_problem, live_workers())
    by, reason = operation.actor_name, operation.reason
    return job_operations.replay(ids, check=check, actor=actor, by=by, reason=reason)


EXECUTE: Mapping[str, Execute] = {
    BulkAction.CANCEL: _cancel,
    BulkAction.REPRIORITIZE: _reprioritize,
    BulkAction.RUN_NOW: _run_now,
    BulkAction.REPLAY: _replay,
}


def fleet_problem(workers: list[Worker], job: Job) -> str | None:
    """Why no worker could run ``job``, or None. This process is asked, unless only the code of
    another worker knows the job type or reads the payload's version."""
    known = registry.find(job.job_type)
    if known is None or known.version < job.payload_version:
        for worker in workers:
            versions = worker.payload_versions
            newest = None if versions is None else versions.get(job.job_type, 1)
            if job.job_type in worker.job_types and (
                newest is None or newest >= job.payload_version
            ):
                return None
    return replay_problem(job)


def live_workers() -> list[Worker]:
    """The workers whose lease has not run out."""
    rows = Worker.objects.using(conf().database)
    return list(rows.filter(status__in=ALIVE, lease_expires_at__gt=Now()))
