"""The state of a schedule, as Python and as a condition on its row."""

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
"""How long past its due time a schedule that has not fired is overdue: from then on the due time
counts as missed."""

ARMED = Q(enabled=True, paused_at__isnull=True, error="")


class ScheduleState(models.TextChoices):
    """A schedule is in exactly one: in the first that fits of error, disabled, paused."""

    ON = "on", _("on")
    OVERDUE = "overdue", _("overdue")
    PAUSED = "paused", _("paused")
    ERROR = "error", _("error")
    DISABLED = "disabled", _("disabled")
    ENDED = "ended", _("ended")


def state_at(schedule: Schedule, now: datetime) -> ScheduleState:
    """What :data:`CONDITIONS` says of its row. ``now`` is the database's time."""
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
"""Each row meets exactly one of them: the one of its state."""
