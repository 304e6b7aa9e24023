"""Pauses a queue, a schedule, a resource, a tenant or a job type by its name, and resumes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from ..conf import conf
from ..domain.errors import UNSTORABLE
from ..domain.hints import hint
from ..exceptions import JobsError, OperationRefused, UnknownJobType, UnknownQueue, UnknownResource
from ..lifecycle.operations import jobs, limits, quarantines, schedules
from ..lifecycle.operations.jobs import Actor
from ..lifecycle.pausing import ended_pauses
from ..models import Job, Quarantine, Queue, Resource, Worker
from ..models.database import needing_tables
from ..registry import find, names
from .occurrences import schedule_named

KINDS: dict[str, tuple[Callable[..., list[str]], Callable[..., list[str]]]] = {
    "queue": (jobs.pause, jobs.resume),
    "schedule": (schedules.pause, schedules.resume),
    "resource": (limits.pause_resources, limits.resume_resources),
    "tenant": (limits.pause_tenants, limits.resume_tenants),
    "job_type": (quarantines.quarantine, quarantines.lift),
}
"""What can be paused, and the operations that pause and resume it."""


def pause(
    kind: str,
    name: str,
    *,
    reason: str = "",
    until: datetime | timedelta | None = None,
    actor: Actor = None,
    by: str = "",
) -> bool:
    """Pause what jobs go through: a ``"queue"``, ``"schedule"``, ``"resource"``, ``"tenant"`` or
    ``"job_type"``, until :func:`resume`, or ``until`` an aware time or the end of a time from now,
    after which a worker resumes it within ``SWEEP_SECONDS``.

    No job starts from a paused queue, with a paused resource, for a paused tenant or of a paused
    job type (which is quarantined under all its names); those that run are not affected. A paused
    schedule skips its due times. Returns False if it was paused already, whose reason and end stay.

    With an ``actor``, a user, checks the permission of the kind, such as ``pause_queue``; else
    ``by`` is who asked. Both, and the ``reason`` of up to 300 characters, are shown in the admin.
    Raises :class:`UnknownQueue`, :class:`UnknownResource`, :class:`UnknownJobType` or
    :class:`OperationRefused` for a name that nothing has, ``ValueError`` for another kind, and for
    a time that has passed or has no zone.
    """
    end = _end_of(until)
    with needing_tables:
        demand_known(kind, name)
        does = KINDS[kind][0]
        return bool(does(_target(kind, name), actor=actor, by=by, reason=reason, until=end))


def resume(kind: str, name: str, *, actor: Actor = None) -> bool:
    """Undo :func:`pause`. A schedule continues from now: due times of the pause are not made up
    for, and an error of it is cleared. Returns False if it was not paused. Raises as
    :func:`pause`."""
    with needing_tables:
        demand_known(kind, name)
        return bool(KINDS[kind][1](_target(kind, name), actor=actor))


def resume_ended() -> list[tuple[str, str]]:
    """Resume what was paused until a time that has passed; return the kind and the name of each."""
    resumed: list[tuple[str, str]] = []
    for kind, name in ended_pauses():
        with suppress(OperationRefused):  # the schedule was deleted meanwhile
            if KINDS[kind][1](_target(kind, name), ended=True):
                resumed.append((kind, name))
    return resumed


def _target(kind: str, name: str) -> Any:
    """What the operations of a kind take: a job type one at a time, and schedules by their ids."""
    if kind == "job_type":
        return name
    return [schedule_named(name).pk] if kind == "schedule" else [name]


def _end_of(until: object) -> datetime | None:
    if until is None:
        return None
    try:
        end = timezone.now() + until if isinstance(until, timedelta) else until
    except OverflowError:
        raise ValueError(f"{until!r} from now is too far") from None
    if not isinstance(end, datetime):
        raise TypeError(f"until is an aware datetime or a timedelta, not {until!r}")
    if timezone.is_naive(end):
        raise ValueError(f"{end} has no time zone; pass an aware datetime")
    if end <= timezone.now():
        raise ValueError(f"{end} has passed")
    return end


def demand_known(kind: str, name: str) -> None:
    """Raise what :func:`pause` raises for a kind and a name. A tenant needs no row."""
    if kind not in KINDS:
        listed = f"a kind is one of: {', '.join(KINDS)}"
        raise ValueError(f"{kind!r} is no kind{hint(kind, KINDS, listed)}")
    if not isinstance(name, str):
        raise TypeError(f"a {kind} is given by its name, not {name!r}")
    if kind == "schedule":
        schedule_named(name)
    elif kind == "queue":
        _demand(UnknownQueue, "queue", name, list(Queue.objects.names()))
    elif kind == "resource":
        _demand(UnknownResource, "resource", name, list(Resource.objects.names()))
    elif kind == "job_type" and not _is_known_type(name):
        _demand(UnknownJobType, "job type", name, names())


def _demand(error: type[JobsError], kind: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise error(f"no {kind} is named {name!r}{hint(name, known, most=3)}")


def _is_known_type(name: str) -> bool:
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
