"""Pauses a queue, a schedule, a resource, a tenant or a job type by its name, and resumes it."""

from __future__ import annotations

from ..conf import conf
from ..domain.errors import UNSTORABLE
from ..domain.hints import did_you_mean
from ..exceptions import JobsError, UnknownJobType, UnknownQueue, UnknownResource
from ..lifecycle.operations import jobs, limits, quarantines, schedules
from ..lifecycle.operations.jobs import Actor
from ..models import Job, Quarantine, Queue, Resource, Worker
from ..models.database import needing_tables
from ..registry import find, names
from .occurrences import schedule_named

KINDS = ("queue", "schedule", "resource", "tenant", "job_type")


def pause(kind: str, name: str, *, reason: str = "", actor: Actor = None, by: str = "") -> bool:
    """Pause what jobs go through: a ``"queue"``, ``"schedule"``, ``"resource"``, ``"tenant"`` or
    ``"job_type"``, until :func:`resume`.

    No job starts from a paused queue, with a paused resource, for a paused tenant or of a paused
    job type (which is quarantined under all its names); those that run are not affected. A paused
    schedule skips its due times. Returns False if it was paused already, whose reason stays.

    With an ``actor``, a user, checks the permission of the kind, such as ``pause_queue``; else
    ``by`` is who asked. Both, and the ``reason`` of up to 300 characters, are shown in the admin.
    Raises :class:`UnknownQueue`, :class:`UnknownResource`, :class:`UnknownJobType` or
    :class:`OperationRefused` for a name that nothing has, ``ValueError`` for another kind.
    """
    with needing_tables:
        demand_known(kind, name)
        if kind == "queue":
            return bool(jobs.pause([name], actor=actor, by=by, reason=reason))
        if kind == "resource":
            return bool(limits.pause_resources([name], actor=actor, by=by, reason=reason))
        if kind == "tenant":
            return bool(limits.pause_tenants([name], actor=actor, by=by, reason=reason))
        if kind == "job_type":
            return bool(quarantines.quarantine(name, actor=actor, by=by, reason=reason))
        pk = schedule_named(name).pk
        return bool(schedules.pause([pk], actor=actor, by=by, reason=reason))


def resume(kind: str, name: str, *, actor: Actor = None) -> bool:
    """Undo :func:`pause`. A schedule goes on from now: due times of the pause are not made up for,
    and an error of it is cleared. Returns False if it was not paused. Raises as :func:`pause`."""
    with needing_tables:
        demand_known(kind, name)
        if kind == "queue":
            return bool(jobs.resume([name], actor=actor))
        if kind == "resource":
            return bool(limits.resume_resources([name], actor=actor))
        if kind == "tenant":
            return bool(limits.resume_tenants([name], actor=actor))
        if kind == "job_type":
            return bool(quarantines.lift(name, actor=actor))
        return bool(schedules.resume([schedule_named(name).pk], actor=actor))


def demand_known(kind: str, name: str) -> None:
    """Raise what :func:`pause` raises for a kind and a name. A tenant needs no row: its jobs may
    come later."""
    if kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS, most=1)
        listed = f"a kind is one of: {', '.join(KINDS)}"
        raise ValueError(f"{kind!r} is no kind; {' '.join(filter(None, (hint, listed)))}")
    if not isinstance(name, str):
        raise TypeError(f"a {kind} is given by its name, not {name!r}")
    if kind == "schedule":
        schedule_named(name)
    elif kind == "queue":
        _demand(UnknownQueue, "queue", name, list(Queue.objects.names()))
    elif kind == "resource":
        _demand(UnknownResource, "resource", name, list(Resource.objects.names()))
    elif kind == "job_type" and not is_known_type(name):
        _demand(UnknownJobType, "job type", name, names())


def _demand(error: type[JobsError], kind: str, name: str, known: list[str]) -> None:
    if name not in known:
        hint = did_you_mean(name, known, most=3)
        raise error(f"no {kind} is named {name!r}" + (f"; {hint}" if hint else ""))


def is_known_type(name: str) -> bool:
    """Whether this code, a worker or a job has this job type, or it was ever quarantined."""
    if UNSTORABLE.search(name):
        return False
    alias = conf().database
    return (
        find(name) is not None
        or Worker.objects.using(alias).filter(job_types__contains=name).exists()
        or Quarantine.objects.using(alias).filter(job_type=name).exists()
        or Job.objects.using(alias).filter(job_type=name).exists()
    )
