"""Skips, moves or changes single due times of a schedule ahead of time, and runs a schedule now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .. import registry
from ..conf import conf
from ..domain.errors import UNSTORABLE
from ..domain.hints import did_you_mean
from ..exceptions import OperationRefused, PayloadError
from ..lifecycle.editing import occurrences
from ..lifecycle.operations import schedules as schedule_operations
from ..lifecycle.operations.jobs import Actor
from ..models import Job, Schedule, ScheduleException
from ..models.database import needing_tables
from .schedules import request_of

MOST_COMPARED = 10_000
"""Names to compare a misspelt one with."""


def skip_occurrence(
    schedule: str, due_at: datetime, *, reason: str = "", actor: Actor = None, by: str = ""
) -> ScheduleException:
    """Let the due time ``due_at`` of the schedule with this name make no job. Its tick says
    ``skipped``, and has the reason.

    With an ``actor``, a user, checks the permission ``move_schedule``; else ``by`` is who asked.
    Raises :class:`OperationRefused` for an unknown schedule, for what is no due time of it, and for
    one that has come, ``TypeError`` for what is no name, no time or no text.
    """
    with needing_tables:
        pk = schedule_named(schedule).pk
        return occurrences.skip(pk, due_at, actor=actor, by=by, reason=reason)


def move_occurrence(
    schedule: str,
    due_at: datetime,
    to: datetime,
    *,
    reason: str = "",
    actor: Actor = None,
    by: str = "",
) -> ScheduleException:
    """Let the due time ``due_at`` of a schedule come at ``to`` instead, earlier or later. What it
    makes is of ``due_at``: its tick, its key, and ``scheduled_for``. See :func:`skip_occurrence`;
    a time ``to`` that has passed is refused too."""
    with needing_tables:
        pk = schedule_named(schedule).pk
        return occurrences.move(pk, due_at, to, actor=actor, by=by, reason=reason)


def change_occurrence(
    schedule: str,
    due_at: datetime,
    payload: Mapping[str, Any],
    *,
    reason: str = "",
    actor: Actor = None,
    by: str = "",
) -> ScheduleException:
    """Give the job of the due time ``due_at`` this payload instead of that of the schedule. See
    :func:`skip_occurrence`. Raises :class:`PayloadError` for a payload that the handler does not
    take."""
    with needing_tables:
        row = schedule_named(schedule)
        job_type = registry.get(row.job_type)
        if not isinstance(payload, Mapping):
            raise PayloadError(f"{row.job_type}: the payload is not a dict of arguments")
        job_type.check_payload(payload)
        given = json.loads(job_type.encoded_payload(dict(payload)))
        return occurrences.replace_payload(
            row.pk, due_at, given, job_type.version, actor=actor, by=by, reason=reason
        )


def restore_occurrence(schedule: str, due_at: datetime, *, actor: Actor = None) -> None:
    """Undo what was asked for the due time ``due_at`` of a schedule. Raises
    :class:`OperationRefused` if there is nothing to undo, or it is too late."""
    with needing_tables:
        occurrences.restore(schedule_named(schedule).pk, due_at, actor=actor)


def run_now(
    schedule: str,
    *,
    payload: Mapping[str, Any] | None = None,
    actor: Actor = None,
    by: str = "code",
) -> Job:
    """Make a job of the schedule with this name at once, regardless of its rule and overlap policy:
    with its own payload or with this one. The schedule stays as it is.

    With an ``actor``, a user, checks the permission ``run_schedule``; else ``by`` is who asked.
    Raises :class:`OperationRefused` for an unknown schedule, and what an enqueue raises."""
    with needing_tables:
        row = schedule_named(schedule)
        if payload is not None and not isinstance(payload, Mapping):
            raise PayloadError(f"{row.job_type}: the payload is not a dict of arguments")
        given = None if payload is None else dict(payload)
        made = schedule_operations.run_now([row.pk], request_of, payload=given, actor=actor, by=by)
        if not made:
            raise OperationRefused(f"the schedule {schedule!r} was deleted")
        return Job.objects.using(conf().database).get(pk=made[0])


def schedule_named(name: object) -> Schedule:
    """The schedule with this name. Raises :class:`OperationRefused`, or ``TypeError``."""
    if not isinstance(name, str):
        also = "; pass its name" if isinstance(name, Schedule) else ""
        raise TypeError(f"a schedule is given by its name, not {name!r}{also}")
    rows = Schedule.objects.using(conf().database)
    storable = rows.none() if UNSTORABLE.search(name) else rows.filter(name=name)
    row = storable.only("id", "job_type").first()
    if row is None:
        known = known_of(name)
        raise OperationRefused(f"no schedule is named {name!r}{'; ' if known else ''}{known}")
    return row


def known_of(name: str) -> str:
    """What to do about a schedule without a row: the code declares it, or a similar name is there.
    Empty if neither is."""
    if name in registry.schedules():
        return "the code declares it: run manage.py migrate"
    names = Schedule.objects.using(conf().database).order_by("name").values_list("name", flat=True)
    return did_you_mean(name, names[:MOST_COMPARED], most=3)
