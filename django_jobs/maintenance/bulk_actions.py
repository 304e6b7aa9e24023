"""What an operation on all jobs that match does to the jobs of one chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from .. import registry
from ..api import replay_problem
from ..conf import conf
from ..lifecycle.operations import OperationResult, dead_letters
from ..lifecycle.operations import jobs as job_operations
from ..lifecycle.operations.jobs import Actor
from ..models import BulkAction, BulkOperation, Job, Worker

Execute = Callable[[list[int], BulkOperation, Actor], OperationResult]


def _cancel(ids: list[int], operation: BulkOperation, actor: Actor) -> OperationResult:
    why = operation.reason or f"cancelled by {operation.actor_name or 'a command'}"
    return job_operations.cancel(ids, actor=actor, reason=why)


def _replay(ids: list[int], operation: BulkOperation, actor: Actor) -> OperationResult:
    check = partial(fleet_problem, live_workers())
    by, reason = operation.actor_name, operation.reason
    return job_operations.replay(ids, check=check, actor=actor, by=by, reason=reason)


def _dismiss(ids: list[int], operation: BulkOperation, actor: Actor) -> OperationResult:
    by = "" if actor is not None else operation.actor_name
    return dead_letters.dismiss(ids, actor=actor, by=by, reason=operation.reason)


EXECUTE: Mapping[str, Execute] = {
    BulkAction.CANCEL: _cancel,
    BulkAction.REPRIORITIZE: lambda ids, operation, actor: job_operations.reprioritize(
        ids, operation.arguments["priority"], actor=actor
    ),
    BulkAction.RUN_NOW: lambda ids, _, actor: job_operations.run_now(ids, actor=actor),
    BulkAction.REPLAY: _replay,
    BulkAction.DISMISS: _dismiss,
}


def fleet_problem(workers: list[Worker], job: Job) -> str | None:
    """Why no worker could run ``job``, or None. This process is asked, unless only another worker
    knows its code."""
    if is_known_elsewhere(workers, job.job_type, job.payload_version):
        return None
    return replay_problem(job)


def is_known_elsewhere(workers: list[Worker], job_type: str, version: int) -> bool:
    """Whether this process does not know the job type in this version, and a worker does."""
    known = registry.find(job_type)
    if known is not None and known.version >= version:
        return False
    return any(knows(worker, job_type, version) for worker in workers)


def knows(worker: Worker, job_type: str, version: int = 1) -> bool:
    """Whether a worker has the handler of a job type, for payloads of this version."""
    versions = worker.payload_versions
    newest = version if versions is None else versions.get(job_type, 1)
    return job_type in worker.job_types and newest >= version


def live_workers() -> list[Worker]:
    return list(Worker.objects.using(conf().database).alive())
