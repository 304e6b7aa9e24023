"""The state of a schedule, in Python and as a condition in SQL."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..domain.schedules import ON_TIME_SECONDS

if TYPE_CHECKING:
    from .schedule import Schedule

OVERDUE = timedelta(seconds=ON_TIME_SECONDS)
"""A schedule that has not fired this long after its due time is overdue, and the due time counts as
missed."""

ARMED = Q(enabled=True, paused_at__isnull=True, error="")


class ScheduleState(models.TextChoices):
    """The state of a schedule: of error, disabled and paused, the first that applies."""

    ON = "on", _("on")
    OVERDUE = "overdue", _("overdue")
    PAUSED = "paused", _("paused")
    ERROR = "error", _("error")
    DISABLED = "disabled", _("disabled")
    ENDED = "ended", _("ended")


def state_at(schedule: Schedule, now: datetime) -> ScheduleState:
    """The state by the same rules as :data:`CONDITIONS`. ``now`` is the database's time."""
    if schedule.error:
        return ScheduleState.ERROR
    if not schedule.enabled:
        return ScheduleState.DISABLED
    if schedule.paused_at is not None:
        return ScheduleState.PAUSED
    if schedule.stale:
        return ScheduleState.ON
    if schedule.next_due_at is None:
        return ScheduleState.ENDED
    return ScheduleState.OVERDUE if schedule.next_due_at < now - OVERDUE else ScheduleState.ON


_LATE = Q(next_due_at__lt=Now() - OVERDUE)

CONDITIONS = {
    ScheduleState.ON: ARMED & (Q(stale=True) | Q(next_due_at__isnull=False) & ~_LATE),
    ScheduleState.OVERDUE: ARMED & Q(stale=False) & _LATE,
    ScheduleState.PAUSED: Q(error="", enabled=True, paused_at__isnull=False),
    ScheduleState.ERROR: ~Q(error=""),
    ScheduleState.DISABLED: Q(error="", enabled=False),
    ScheduleState.ENDED: ARMED & Q(stale=False, next_due_at__isnull=True),
}
"""Each row meets exactly one condition: that of its state."""
