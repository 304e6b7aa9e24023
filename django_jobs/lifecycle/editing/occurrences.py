"""Operations on single due times of schedules. Each checks the actor's permission again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop

from ...conf import conf
from ...domain.numbers import LONGEST_AGE
from ...domain.policies import EPOCH, Change, TickState, in_utc, zone_text
from ...domain.schedules import INSTANT
from ...exceptions import OperationRefused
from ...models import Schedule, ScheduleException, Tick
from ..operations.jobs import Actor, demand, name_of
from ..operations.schedules import changed
from ..schedules.due import lock, read
from ..schedules.firing import NewTick, advance, write_ticks

PERMISSION = "django_jobs.move_schedule"
MOST_COMING = 366
"""Exceptions of a schedule that are to come, at most: each look at a due schedule reads them."""
FARTHEST = timedelta(seconds=LONGEST_AGE)
"""How far ahead a new time may be: as that of a job."""
NAMED = 3
"""Due times that the refusal of another one names."""


def skip(
    schedule: int, due: datetime, *, actor: Actor = None, by: str = "", reason: str = ""
) -> ScheduleException:
    """Let this due time make no job. Its tick says who skipped it, and why. Without an actor,
    ``by`` is who asked.

    Raises ``PermissionDenied`` if ``actor`` may not, and ``OperationRefused`` for a schedule or a
    due time that does not exist, and for one that has come.
    """
    return _change(schedule, due, actor, by, reason, skipped=True, moved_to=None, payload=None)


def move(
    schedule: int,
    due: datetime,
    to: datetime,
    *,
    actor: Actor = None,
    by: str = "",
    reason: str = "",
) -> ScheduleException:
    """Let this due time come at ``to`` instead, earlier or later; see :func:`skip`. It keeps its
    own payload, if it has one. Raises ``OperationRefused`` also if ``to`` has passed or is the due
    time itself."""
    return _change(schedule, due, actor, by, reason, skipped=False, moved_to=to)


def replace_payload(
    schedule: int,
    due: datetime,
    payload: Mapping[str, Any],
    version: int,
    *,
    actor: Actor = None,
    by: str = "",
    reason: str = "",
) -> ScheduleException:
    """Give the job of this due time another payload; see :func:`skip`. It stays where it was moved
    to. The payload is one that the handler takes, in its ``version``."""
    given = {"payload": dict(payload), "payload_version": version}
    return _change(schedule, due, actor, by, reason, skipped=False, **given)


def restore(schedule: int, due: datetime, *, actor: Actor = None) -> None:
    """Let this due time do again what the rule says. Raises ``PermissionDenied`` if ``actor`` may
    not, and ``OperationRefused`` if it has no exception or has come, or was moved and would have
    come by now."""
    demand(actor, PERMISSION)
    with transaction.atomic(using=conf().database):
        row, due = _locked(schedule, due)
        exception = _exception_of(row, due)
        if exception is None:
            raise OperationRefused(f"{zone_text(due, row.zone)} has no exception")
        if _has(row, due):
            _refuse_passed(row, due, exception)
            if due <= row.now:
                raise OperationRefused(
                    f"{zone_text(due, row.zone)} has passed; it can be moved again, or skipped"
                )
        exception.delete(using=conf().database)
        _go_on(row, due)


def _change(
    schedule: int, due: datetime, actor: Actor, by: str, reason: str, **does: Any
) -> ScheduleException:
    demand(actor, PERMISSION, reason)
    with transaction.atomic(using=conf().database):
        row, due = _locked(schedule, due)
        _refuse_unknown(row, due)
        exception = _exception_of(row, due)
        _refuse_passed(row, due, exception)
        if exception is None:
            coming = sum(change.due > row.now for change in row.rule.changes)
            if coming >= MOST_COMING:
                raise OperationRefused(f"at most {MOST_COMING} exceptions can be to come")
            exception = ScheduleException(schedule=row, due_at=due)
        if "moved_to" in does and not does["skipped"]:
            does["moved_to"] = _moved_to(row, due, does["moved_to"])
        written = {"requested_by": (name_of(actor) or by)[:200], "reason": reason[:300], **does}
        for name, value in written.items():
            setattr(exception, name, value)
        exception.save(using=conf().database)
        if exception.skipped and due <= row.now:  # it was moved: no worker looks at it again
            change = Change(
                due=due, skipped=True, by=exception.requested_by, reason=exception.reason
            )
            tick = NewTick(
                schedule=row.pk, due=due, outcome=TickState.SKIPPED, reason=change.text_in(row.zone)
            )
            write_ticks([tick])
        _go_on(row, due)
    return exception


def _locked(schedule: int, due: datetime) -> tuple[Schedule, datetime]:
    due = _instant(due)
    row = next(iter(lock([schedule])), None)
    if row is None:
        raise OperationRefused(gettext_noop("the schedule was deleted"))
    return row, due


def _instant(at: object) -> datetime:
    if not isinstance(at, datetime):
        raise TypeError(f"a due time is a datetime with a time zone, not {at!r}")
    if at.utcoffset() is None:
        raise OperationRefused(gettext_noop("a due time needs a time zone"))
    if not EPOCH.year <= at.year < 9999:
        raise OperationRefused(gettext_noop("the time is not between the years 1970 and 9998"))
    due = in_utc(at)
    local = at.replace(tzinfo=None)
    if (there := due.astimezone(at.tzinfo)).replace(tzinfo=None) != local:
        raise OperationRefused(
            f"{local:%Y-%m-%d %H:%M:%S} does not exist in {at.tzinfo}, because the clock goes"
            f" forward; {zone_text(there, there.tzinfo or UTC)} does"
        )
    return due


def _exception_of(row: Schedule, due: datetime) -> ScheduleException | None:
    rows = ScheduleException.objects.using(conf().database)
    return rows.filter(schedule=row, due_at=due).first()


def _has(row: Schedule, due: datetime) -> bool:
    """Whether it is a due time. A rule that cannot be read has none."""
    with suppress(ValueError, OverflowError):
        return row.rule.has(due)
    return False


def _refuse_unknown(row: Schedule, due: datetime) -> None:
    try:
        if row.rule.has(due):
            return
        coming = ", ".join(zone_text(at, row.zone) for at in islice(_to_come(row, due), NAMED))
    except (ValueError, OverflowError) as error:
        raise OperationRefused(f"the rule of the schedule cannot be read: {error}") from None
    after = f"; after it come {coming}" if coming else ""
    raise OperationRefused(f"{zone_text(due, row.zone)} is no due time of the schedule{after}")


def _to_come(row: Schedule, after: datetime) -> Iterator[datetime]:
    """The due times by the rule behind ``after`` that can be changed."""
    come = {one.due for one in row.rule.changes if one.moved_to and one.moved_to <= row.now}
    by_rule = replace(row.rule, changes=()).due_times(max(after, row.now))
    return (due for due in by_rule if due not in come)


def _refuse_passed(row: Schedule, due: datetime, exception: ScheduleException | None) -> None:
    at = due if exception is None else exception.moved_to or due
    if at <= row.now:
        raise OperationRefused(f"{zone_text(due, row.zone)} has come already")
    ticks = Tick.objects.using(conf().database).filter(schedule=row, due_at=due)
    if ticks.exists():  # a backfill, or the database's clock was ahead
        raise OperationRefused(f"{zone_text(due, row.zone)} has a tick already")
    if row.jobs_left == 0:
        raise OperationRefused(gettext_noop("the schedule has made all of its jobs"))


def _moved_to(row: Schedule, due: datetime, to: datetime) -> datetime:
    to = _instant(to)
    if to <= row.now:
        raise OperationRefused(f"the new time {zone_text(to, row.zone)} has passed")
    if to > row.now + FARTHEST:
        raise OperationRefused(
            f"the new time {zone_text(to, row.zone)} is more than a century ahead"
        )
    if to == due:
        raise OperationRefused(gettext_noop("the new time is the due time itself"))
    return to


def _go_on(before: Schedule, due: datetime) -> None:
    """Compute the next due time anew. What has come is behind the one that is stored, so that it
    begins there, or at what lies ahead and was not to come before."""
    row = _read(before)
    if row.is_armed and not row.stale and row.jobs_left != 0:
        moved_to = [change.moved_to for change in row.rule.changes if change.due == due]
        ahead = {at for at in (due, *moved_to) if at is not None and at > row.now}
        if row.next_due_at is not None:
            ahead.add(row.next_due_at)
        with suppress(ValueError, OverflowError):  # a worker marks it with an error
            if ahead:
                advance({row.pk: (row.rule.next(min(ahead) - INSTANT), None)}, {})
    changed()


def _read(row: Schedule) -> Schedule:
    (again,) = read([row.pk])
    return again
