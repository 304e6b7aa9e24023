"""Edits a job: validates what it is to be as an enqueue does, and writes it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from django.utils.translation import gettext_noop

from .. import registry
from ..domain.gates import Gates, parse
from ..domain.payload import key_parts
from ..exceptions import JobsError, OperationRefused, PayloadError, UnknownJobType
from ..lifecycle.editing import edits
from ..lifecycle.editing.edits import Edited, StoredJob
from ..lifecycle.operations import OperationResult
from ..lifecycle.operations.jobs import Actor, demand
from ..lifecycle.scope import OUTSIDE, Scope, scope_of
from ..lifecycle.workflows.results import taken_arguments
from ..models import Job
from ..models.database import jobs_connection, needing_tables
from .job_type import JobType
from .shortcuts import replay_problem

TO_COPY = ("django_jobs.edit_job", "django_jobs.view_job_payload")
"""With ``enqueue_job``, to enqueue another job of a type that is not ``schedulable``: who has them
can give a waiting job of it any arguments."""


def edit_job(
    id_: int,
    *,
    payload: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    actor: Actor = None,
    by: str = "",
    reason: str = "",
    state: str | None = None,
) -> OperationResult:
    """Edit a job that has not started, or edit and replay a dead one. None keeps what is stored.

    ``payload`` is for the handler of today, in its current version. Raises what
    :meth:`JobType.enqueue` raises, and what :func:`~django_jobs.lifecycle.editing.edits.edit`
    raises.
    """
    prepare = partial(edited, payload=payload, queue=queue, priority=priority, run_at=run_at)
    with needing_tables:
        return edits.edit(
            id_, prepare, check=replay_problem, actor=actor, by=by, reason=reason, state=state
        )


def edited(
    stored: StoredJob,
    *,
    payload: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
) -> Edited:
    """What the job is to be. Raises what :meth:`JobType.enqueue` raises."""
    job_type = registry.find(stored.job_type)
    if job_type is None:
        raise UnknownJobType(f"no handler is registered for {stored.job_type!r}")
    chosen = job_type.using(
        queue=stored.queue if queue is None else queue,
        priority=stored.priority if priority is None else priority,
        run_at=run_at,
    )
    new = chosen.request()
    arguments = None if payload is None else _bound(chosen, payload, taken_of(stored))
    before = stored_arguments(chosen, stored.payload, stored.payload_version)
    text = None if arguments is None else chosen.encoded_payload(arguments, files_of=before)
    changed = {
        "payload": arguments is not None and _sorted(arguments) != _sorted(before),
        "queue": chosen.queue != stored.queue,
        "priority": chosen.priority != stored.priority,
        "due": run_at is not None and run_at.timestamp() != stored.available_at,
    }
    names = [name for name, is_changed in changed.items() if is_changed]
    if not names:
        raise OperationRefused(gettext_noop("nothing was changed"))
    gates = _gates(chosen, stored, before, arguments)
    scope, _ = key_parts(stored.idempotency_key or "")
    if scope is not None and (gates is None or gates.tenant != scope):
        raise OperationRefused(gettext_noop("its key is unique within its tenant, which stays"))
    return Edited(
        changed=names,
        queue=chosen.queue,
        weight=new.weight,
        priority=chosen.priority,
        gates=gates,
        payload=text if changed["payload"] else None,
        payload_version=chosen.version if changed["payload"] else None,
        run_at=run_at if changed["due"] else None,
    )


def taken_of(stored: StoredJob) -> list[str]:
    """The arguments of the job that are results of other steps. Its payload may have them too."""
    return [] if stored.workflow_run_id is None else taken_arguments([stored.id])[stored.id]


def stored_arguments(
    job_type: JobType[..., Any], payload: str, version: int
) -> dict[str, Any] | None:
    """A stored payload for the handler of today; None if that cannot be made of it."""
    try:
        return job_type.upgraded(json.loads(payload), version)
    except (ValueError, RecursionError, PayloadError):
        return None


def enqueue_by_hand(
    name: str,
    payload: Mapping[str, Any],
    *,
    actor: Actor = None,
    like: int | None = None,
    **options: Any,
) -> Job:
    """Enqueue a job of a type that is ``schedulable``, or of the type that the job ``like`` has: an
    actor may do that who may edit that job. ``options`` are those of :meth:`JobType.using`.

    Raises ``PermissionDenied`` if ``actor`` may not, ``OperationRefused`` for another job type, for
    one outside of the actor's scope, for a key that a job outside of it holds, and for
    ``on_duplicate`` of an actor with a scope; and what :meth:`JobType.enqueue` raises.
    """
    demand(actor, "django_jobs.enqueue_job")
    job_type, scope = registry.get(name), scope_of(actor)
    if not job_type.schedulable:
        if like is None or not _is_of_type(like, job_type, scope):
            raise OperationRefused(f"{name} is not declared with schedulable=True")
        for permission in TO_COPY:
            demand(actor, permission)
    chosen = job_type.using(**options)
    if scope is not None and not (
        scope.has_declared(job_type.queue, name) and scope.has_queue(chosen.queue)
    ):
        raise OperationRefused(OUTSIDE)
    if scope is not None and chosen.on_duplicate != "return":  # it may change a job outside of it
        raise OperationRefused(
            gettext_noop("you may act on some jobs only, so on_duplicate is 'return'")
        )
    with needing_tables:
        job = chosen.insert(chosen.bind(**payload))
    if scope is not None and not scope.has(job.queue, job.job_type):
        raise OperationRefused(
            gettext_noop("a job that you may not see holds this idempotency key")
        )
    return job


def _is_of_type(id_: int, job_type: JobType[..., Any], scope: Scope | None) -> bool:
    condition = (scope or Scope()).of(queue="queue", job_type="job_type")
    found = Job.objects.using(jobs_connection().alias).filter(condition, pk=id_)
    return registry.find(found.values_list("job_type", flat=True).first() or "") is job_type


def _bound(
    job_type: JobType[..., Any], payload: Mapping[str, Any], taken: Collection[str]
) -> dict[str, Any]:
    """The payload by name. It may lack what the job takes from other steps."""
    bound = job_type.bind(**{**dict.fromkeys(taken), **payload})
    return {name: value for name, value in bound.items() if name in payload or name not in taken}


def _sorted(payload: Any) -> str:
    """A payload as text to compare: in Python 1, 1.0 and True are equal."""
    return json.dumps(payload, sort_keys=True)


def _gates(
    chosen: JobType[..., Any],
    stored: StoredJob,
    before: dict[str, Any] | None,
    arguments: dict[str, Any] | None,
) -> Gates | None:
    """The gates of the edited job: those that its request named, and those of the new payload."""
    had = None if stored.gates is None else parse(stored.gates)
    kept = None if had is None else had.in_queue(chosen.queue)
    if before is not None:
        try:
            followed = chosen.using(queue=stored.queue).gates_of(before)
        except JobsError:
            followed = had
        if followed != had:
            return kept
        arguments = before if arguments is None else arguments
    return kept if arguments is None else chosen.gates_of(arguments)
