"""Queries of jobs and of schedules."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..domain.policies import ON_TIME_SECONDS
from ..domain.states import LIVE, JobState

if TYPE_CHECKING:
    from .job import DeadLetter, Job  # noqa: F401
    from .schedule import Schedule

OVERDUE = timedelta(seconds=ON_TIME_SECONDS)
"""A schedule is overdue, and a due time missed, if it has not fired this long after it."""

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


MOST_OF_A_RARE_TAG = 1_000


class JobQuerySet(models.QuerySet["Job"]):
    """Queries jobs. Only ``django_jobs.lifecycle`` writes them."""

    def live(self) -> JobQuerySet:
        """Jobs that have not ended."""
        return self.filter(status__in=LIVE)

    def dead(self) -> JobQuerySet:
        return self.filter(status=JobState.DEAD)

    def tagged(self, *tags: str) -> JobQuerySet:
        """Jobs of any status that have all of these tags."""
        return self.filter(tags__contains=tags)

    def listed_by_tag(self, tag: str) -> JobQuerySet:
        """Those with this tag, to be sorted by their ids. Of a rare tag, PostgreSQL would read the
        jobs backwards by their ids: 250 ms among a million. All its ids come from the index."""
        tagged = self.model.objects.using(self.db).tagged(tag).values_list("pk", flat=True)
        ids = list(tagged[: MOST_OF_A_RARE_TAG + 1])
        rare = len(ids) <= MOST_OF_A_RARE_TAG
        return self.filter(pk__in=ids) if rare else self.tagged(tag)

    def holding_key(self, queue: str, key: str) -> JobQuerySet:
        """The live job in ``queue`` with this idempotency key, if any."""
        return self.live().filter(queue=queue, idempotency_key=key)


class DeadLetterManager(models.Manager["DeadLetter"]):
    def get_queryset(self) -> models.QuerySet[DeadLetter]:
        return super().get_queryset().filter(status=JobState.DEAD)


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    """Queries schedules. An update of a rule marks the schedule stale."""

    def armed(self) -> ScheduleQuerySet:
        """The schedules that can be due: enabled, not paused, and without an error."""
        return self.filter(ARMED)

    def in_state(self, state: ScheduleState) -> ScheduleQuerySet:
        return self.filter(CONDITIONS[state])

    def update(self, **values: Any) -> int:
        if not values.keys().isdisjoint((*self.model.RULE_FIELDS, "jobs_made")):
            values.setdefault("stale", True)
        return super().update(**values)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Also delete their ticks. Locks schedules first: the tick of one that fires would stay."""
        alias = self.select_for_update().db
        with transaction.atomic(using=alias):
            rows = self.model.objects.using(alias).filter(pk__in=self.values("pk")).order_by("pk")
            list(rows.select_for_update().values("pk"))
            return super().delete()

    # As on Django's delete. mypy knows no attributes of a function.
    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]
