"""Finds the schedules that an operator names, and formats them and their due times as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, tzinfo
from itertools import islice
from typing import Any

from django.core.management.base import CommandError
from django.db.models import Q, Subquery
from django.db.models.functions import JSONObject, Least

from ...conf import conf
from ...domain.changes import Occurrence, zone_text
from ...domain.cron import UnknownTimezone, check_timezone, clock_change
from ...domain.cron_text import describe, needs_both_elsewhere
from ...domain.durations import exactly
from ...domain.hints import did_you_mean
from ...domain.schedules import Rule
from ...lifecycle.schedules.due import as_read
from ...models import Backfill, Schedule
from ...models.querysets import ScheduleQuerySet
from ...models.schedule_state import CONDITIONS, ScheduleState
from ...models.tick import TickOutcome, last_of_schedule
from ..base import table

MOST_COMPARED = 10_000
"""Names to compare a misspelt one with."""


def all_schedules() -> ScheduleQuerySet:
    """All schedules, sorted by name. Each has its exceptions, and the database's time as
    ``now``."""
    return Schedule.objects.using(conf().database).annotate(**as_read()).order_by("name")


def named(names: Sequence[str]) -> list[Schedule]:
    """The schedules with these names, in this order. Raises ``CommandError`` for an unknown one."""
    by_name = {schedule.name: schedule for schedule in all_schedules().filter(name__in=names)}
    problems = [_unknown(name) for name in dict.fromkeys(names) if name not in by_name]
    if problems:
        raise CommandError("; ".join(problems))
    return [by_name[name] for name in dict.fromkeys(names)]


def _unknown(name: str) -> str:
    all_names = (
        Schedule.objects.using(conf().database).order_by("name").values_list("name", flat=True)
    )
    hint = did_you_mean(name, all_names[:MOST_COMPARED], most=3)
    return f"no schedule is named {name!r}; {hint or 'run jobschedule list for all names'}"


def backfill_of(number: int) -> Backfill:
    """The backfill with this id. Raises ``CommandError`` if there is none."""
    rows = Backfill.objects.using(conf().database).select_related("schedule")
    backfill = rows.filter(pk=number).first() if 0 < number < 2**63 else None
    if backfill is None:
        raise CommandError(f"there is no backfill {number}")
    return backfill


def moment(text: str, timezone: str, *, end: bool = False) -> datetime:
    """Parse an ISO date or time, or a time as :func:`zone_text` writes it. Without an offset it is
    local time in ``timezone``. A date alone means the start of the day, or its end if ``end``.

    Raises ``CommandError`` for anything else.
    """
    try:
        zone = check_timezone(timezone)
    except UnknownTimezone as error:
        raise CommandError(str(error)) from None
    try:
        parsed = _printed(text, zone) or datetime.fromisoformat(text)
        if len(text) <= len("2026-10-25"):
            parsed = datetime.combine(parsed, time.max if end else time.min)
    except ValueError:
        raise CommandError(
            f"{text!r} is neither a date such as 2026-10-25 nor a time such as 2026-10-25T02:30"
        ) from None
    if not 1970 <= parsed.year < 9999:
        raise CommandError(f"{text!r} is not between the years 1970 and 9998")
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)


def _printed(text: str, zone: tzinfo) -> datetime | None:
    """A time with the name of its zone, which is UTC or ``zone``."""
    local, _, name = text.rpartition(" ")
    with suppress(ValueError):
        if (parsed := datetime.fromisoformat(local)).tzinfo is None:
            for at in (parsed.replace(tzinfo=UTC), parsed.replace(tzinfo=zone)):
                for fold in (0, 1):
                    if (read := at.replace(fold=fold)).tzname() == name:
                        return read
    return None


HEADS = ("NAME", "WHEN", "ZONE", "NEXT (UTC)", "NEXT (LOCAL)", "LAST", "OUTCOME", "STATE")
LONGEST_CELL = 80

LAST_TICK_FIELDS = JSONObject(
    at=Least("due_at", "created_at"),
    due_at="due_at",
    outcome="outcome",
    reason="reason",
    late_seconds="late_seconds",
    job="job_id",
    job_status="job__status",
)


def chosen(text: str, *, failing: bool) -> ScheduleQuerySet:
    """The schedules whose names contain ``text``; with ``failing`` only those that need
    attention."""
    matching = all_schedules().filter(name__icontains=text) if text else all_schedules()
    if not failing:
        return matching
    last = last_of_schedule(conf().database)
    with_last = matching.annotate(
        last_outcome=Subquery(last.values("outcome")[:1]),
        last_status=Subquery(last.values("job__status")[:1]),
    )
    as_asked = (TickOutcome.FIRED, TickOutcome.SKIPPED)
    skipped = Q(last_outcome__isnull=False) & ~Q(last_outcome__in=as_asked)
    wrong = CONDITIONS[ScheduleState.ERROR] | CONDITIONS[ScheduleState.OVERDUE]
    return with_last.filter(wrong | skipped | Q(last_status="dead"))


def as_rows(schedules: ScheduleQuerySet) -> list[dict[str, Any]]:
    """The fields of each schedule as plain values, for JSON or a table."""
    last = last_of_schedule(conf().database)
    with_last = schedules.annotate(last=Subquery(last.values(fields=LAST_TICK_FIELDS)[:1]))
    return [_row(schedule, vars(schedule)["last"]) for schedule in with_last]


def as_table(rows: Iterable[dict[str, Any]]) -> str:
    return table(HEADS, [_cells(row) for row in rows])


def when(schedule: Schedule) -> str:
    return describe(schedule.cron) if schedule.every is None else f"every {exactly(schedule.every)}"


def reason(schedule: Schedule, state: ScheduleState) -> str:
    """Why the schedule is in this state, or how late it is; may be empty."""
    match state:
        case ScheduleState.ERROR:
            return schedule.error
        case ScheduleState.PAUSED:
            return schedule.paused_reason
        case ScheduleState.OVERDUE if schedule.next_due_at is not None:
            return f"by {(schedule.now - schedule.next_due_at).total_seconds():.0f} s"
        case ScheduleState.ENDED if schedule.jobs_left == 0:
            return "it has made all of its jobs"
        case ScheduleState.ON if schedule.stale:
            return "no worker has read its rule yet"
        case ScheduleState.ON if schedule.next_due_at is not None:
            with suppress(ValueError):  # a rule that a worker will refuse
                return "; ".join(
                    f"its next due time is {one.note(schedule.zone)}"
                    for one in schedule.rule.occurrences([schedule.next_due_at])
                    if one.change is not None
                )
            return ""
        case _:
            return ""


def with_reason(state: str, why: str) -> str:
    """``paused: the bank is closed``."""
    return f"{state}: {why}" if why and not why.startswith(state) else why or state


def coming(rule: Rule, after: datetime, count: int) -> str:
    """The next due times, local and UTC, with their exceptions. Raises ``ValueError`` for an
    invalid rule."""
    rule.check()
    rows = [
        (_local(one.at, rule.timezone), _utc(one.at.isoformat()), _notes(one, rule.timezone))
        for one in rule.occurrences(islice(rule.due_times(after), count))
    ]
    text = table(("LOCAL", "UTC", ""), rows) if rows else "It has no further due times."
    if needs_both_elsewhere(rule.cron):
        text += "\nA day that matches either day field is due; Debian's cron and pg_cron need both."
    if strays := rule.strays(after):
        zone = check_timezone(rule.timezone)
        listed = ", ".join(zone_text(change.due, zone) for change in strays)
        text += f"\nNo longer a due time, so that its exception does nothing: {listed}."
    return text


def _notes(one: Occurrence, timezone: str) -> str:
    return "; ".join(
        filter(None, (clock_change(one.at, timezone), one.note(check_timezone(timezone))))
    )


def span(begin: datetime, end: datetime, timezone: str) -> str:
    first = _local(begin, timezone)
    return first if begin == end else f"from {first} to {_local(end, timezone)}"


def _row(schedule: Schedule, last: dict[str, Any] | None) -> dict[str, Any]:
    state = schedule.state_at(schedule.now)
    due = None if schedule.stale else schedule.next_due_at
    return {
        "name": schedule.name,
        "job_type": schedule.job_type,
        "when": when(schedule),
        "cron": schedule.cron,
        "every": schedule.every,
        "timezone": schedule.timezone,
        "declared": schedule.declared,
        "state": state.value,
        "reason": reason(schedule, state),
        "next_due_at": due and due.astimezone(UTC).isoformat(),
        "next_due_local": due and _local(due, schedule.timezone),
        "last_at": last and last.pop("at"),
        "last": last,
    }


def _cells(row: dict[str, Any]) -> Sequence[str]:
    due, last = row["next_due_at"], row["last"]
    return (
        row["name"],
        _cut(row["when"]),
        row["timezone"],
        _utc(due) if due else "-",
        row["next_due_local"] or "-",
        _utc(row["last_at"]) if last else "-",
        _outcome(last) if last else "-",
        _cut(with_reason(row["state"], row["reason"])),
    )


def _outcome(last: dict[str, Any]) -> str:
    if last["outcome"] == TickOutcome.SKIPPED and last["reason"]:  # by whom, and why
        return _cut(last["reason"])
    label = str(TickOutcome(last["outcome"]).label)
    if last["job"] is None:
        return label
    late = f" {last['late_seconds']:.0f} s late" if last["late_seconds"] >= 1 else ""
    return f"{label}{late}, job {last['job']} {last['job_status'] or 'deleted'}"


def _utc(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except ValueError:  # infinity, or a year that Python does not have
        return text


def _local(moment: datetime, timezone: str) -> str:
    try:
        return zone_text(moment, check_timezone(timezone))
    except UnknownTimezone:
        return "-"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_CELL else f"{line[: LONGEST_CELL - 1]}…"
