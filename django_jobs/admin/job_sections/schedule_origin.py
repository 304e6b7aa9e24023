"""The origin of a job: its schedule, its due time, its backfill."""

from __future__ import annotations

import re
from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext as _

from ...models import Backfill, Job, Schedule, Tick
from ..access.visible import Visible
from ..base.formatting import moment_in_zone
from ..schedules.display import on_clock

KEY = re.compile(r"schedule/(\d{1,18})/")
"""The prefix of a scheduled job's idempotency key."""


def origin(job: Job, visible: Visible) -> str:
    """The schedule of a job by name and the due time that made it."""
    tick = _tick(job)
    pk = job.schedule_id if tick is None else tick.schedule_id
    schedule = None if pk is None else schedule_of(job, pk)
    if schedule is None:
        name = _("schedule %(id)s (deleted)") % {"id": pk} if pk else _("a schedule")
        return _due_text(name, moment_in_zone(job.scheduled_for))
    due_text = _due_text(
        visible.link(Schedule, schedule.pk, schedule.name),
        on_clock(job.scheduled_for, schedule.zone),
    )
    if tick is None or tick.backfill_id is None:
        return due_text
    number = _("backfill #%(id)s") % {"id": tick.backfill_id}
    return format_html("{}, {}", due_text, visible.link(Backfill, tick.backfill_id, number))


def schedule_of(job: Any, pk: int) -> Schedule | None:
    """The schedule with this id, read once for ``job``; None if it was deleted."""
    if not hasattr(job, "schedule_row"):
        rows = Schedule.objects.using(job._state.db).defer("payload")
        job.schedule_row = rows.filter(pk=pk).first()
    row: Schedule | None = job.schedule_row
    return row


def _tick(job: Job) -> Any:
    """The tick of the job, by its unique pair: there is no index on a tick's job."""
    pk = job.schedule_id
    if pk is None and (key := KEY.match(job.idempotency_key or "")):
        pk = int(key[1])
    if pk is None or job.scheduled_for is None:
        return None
    rows = Tick.objects.using(job._state.db).filter(schedule=pk, due_at=job.scheduled_for)
    return rows.filter(job=job.pk).first()


def _due_text(name: str, due: str) -> str:
    return format_html(_("{}, due {}"), name, due)
