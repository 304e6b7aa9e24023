"""The actions of ``jobschedule``. Each yields the lines to print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, tzinfo
from itertools import islice
from typing import Any, TypeVar

from django.core.management.base import CommandError
from django.db.models import Q, Subquery
from django.db.models.functions import JSONObject, Least
from django.utils import timezone as clock

from ..api.occurrences import change_occurrence, known_of
from ..api.schedules import request_of
from ..conf import conf
from ..domain.cron import UnknownTimezone, ZonePrefix, check_timezone, clock_change
from ..domain.cron_text import describe, needs_both_elsewhere
from ..domain.numbers import exactly
from ..domain.policies import Occurrence, zone_text
from ..domain.schedules import Rule
from ..lifecycle.editing import occurrences
from ..lifecycle.operations import schedules as schedule_operations
from ..lifecycle.schedules.due import as_read
from ..models import Backfill, Job, Schedule
from ..models.querysets import CONDITIONS, ScheduleQuerySet, ScheduleState
from ..models.tick import TickOutcome, last_of_schedule
from .base import cell, counted, operator, row_of, table


def all_schedules() -> ScheduleQuerySet:
    """All schedules by name, with their exceptions, and the database's time as ``now``."""
    return Schedule.objects.using(conf().database).annotate(**as_read()).order_by("name")


def named(names: Sequence[str]) -> list[Schedule]:
    """The schedules with these names, in this order. Raises ``CommandError`` for an unknown one."""
    by_name = {schedule.name: schedule for schedule in all_schedules().filter(name__in=names)}
    problems = [
        f"no schedule is named {name!r}; {known_of(name) or 'run jobschedule list for all names'}"
        for name in dict.fromkeys(names)
        if name not in by_name
    ]
    if problems:
        raise CommandError("; ".join(problems))
    return [by_name[name] for name in dict.fromkeys(names)]


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
    """The schedules with ``text`` in their names; ``failing``: only those that need attention."""
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
    """The next due times, local and UTC. Raises ``ValueError`` for an invalid rule."""
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
        cell(row["when"], 80),
        row["timezone"],
        _utc(due) if due else "-",
        row["next_due_local"] or "-",
        _utc(row["last_at"]) if last else "-",
        _outcome(last) if last else "-",
        cell(with_reason(row["state"], row["reason"]), 80),
    )


def _outcome(last: dict[str, Any]) -> str:
    if last["outcome"] == TickOutcome.SKIPPED and last["reason"]:  # by whom, and why
        return cell(last["reason"], 80)
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


MOST_LISTED = 1_000
MOST_TIMES = 1_000
Options = dict[str, Any]
T = TypeVar("T")


def show(options: Options) -> Iterator[str]:
    if options["limit"] < 1:
        raise CommandError(f"--limit takes 1 or more, not {options['limit']}")
    matching = chosen(options["text"], failing=options["failing"])
    rows = as_rows(matching[: options["limit"]])
    total = len(rows) if len(rows) < options["limit"] else matching.count()
    if options["json"]:
        yield json.dumps({"schedules": rows, "total": total})
        return
    yield table(HEADS, list(map(_cells, rows))) if rows else "No schedule matches."
    if total > len(rows):
        yield f"Showing {len(rows):,} of {total:,}; raise --limit, or give a part of a name."


def times(options: Options) -> Iterator[str]:
    """List the next due times of a schedule or an expression."""
    if not 1 <= options["count"] <= MOST_TIMES:
        raise CommandError(f"--count takes 1 to {MOST_TIMES:,}, not {options['count']}")
    if (options["name"] is None) == (options["cron"] is None):
        raise CommandError("give either the name of a schedule or --cron")
    if options["cron"] is not None:
        zone = "UTC" if options["timezone"] is None else options["timezone"]
        dst = options["dst"] or "once"
        rule, after = Rule(cron=options["cron"], timezone=zone, dst=dst), clock.now()
    elif options["timezone"] is not None or options["dst"]:
        raise CommandError("--timezone and --dst require --cron; a schedule has its own")
    else:
        (schedule,) = named([options["name"]])
        rule, after = schedule.rule, schedule.now
        if schedule.jobs_left is not None:
            options["count"] = min(options["count"], schedule.jobs_left)
        if not schedule.is_armed:
            state = schedule.state_at(schedule.now)
            described = with_reason(state, reason(schedule, state))
            yield f"{schedule.name} is {described}. Otherwise it would be due:"
    yield _checked(lambda: coming(rule, after, options["count"]))


def run(options: Options) -> Iterator[str]:
    made = schedule_operations.run_now(
        [schedule.pk for schedule in named(options["names"])], request_of, by=operator()
    )
    jobs = Job.objects.using(conf().database).filter(pk__in=made).order_by("pk")
    for name, job, job_type in jobs.values_list("schedule__name", "pk", "job_type"):
        yield f"{name}: made job {job} of {job_type}."


def pause(options: Options) -> Iterator[str]:
    schedules, reason = named(options["names"]), options["reason"]
    why = f"{reason} ({operator()})" if reason else f"paused by {operator()}"
    ids = [schedule.pk for schedule in schedules]
    paused = schedule_operations.pause(ids, reason=why, by=operator())
    for schedule in schedules:
        if schedule.name in paused:
            yield f"{schedule.name}: paused. Existing jobs still run."
        else:
            yield f"{schedule.name}: already paused: {schedule.paused_reason}"


def resume(options: Options) -> Iterator[str]:
    schedules = named(options["names"])
    resumed = schedule_operations.resume([schedule.pk for schedule in schedules])
    for schedule in schedules:
        done = "resumed from now on" if schedule.name in resumed else "it was not paused"
        disabled = "" if schedule.enabled else ", but it is disabled"
        yield f"{schedule.name}: {done}{disabled}."


def skip(options: Options) -> Iterator[str]:
    (schedule,) = named([options["name"]])
    due = moment(options["due"], schedule.timezone)
    occurrences.skip(schedule.pk, due, by=operator(), reason=options["reason"])
    yield f"{schedule.name}: {_in_zone(due, schedule)} is skipped. Its tick will say so."


def move(options: Options) -> Iterator[str]:
    (schedule,) = named([options["name"]])
    due, to = (moment(options[key], schedule.timezone) for key in ("due", "to"))
    occurrences.move(schedule.pk, due, to, by=operator(), reason=options["reason"])
    yield f"{schedule.name}: {_in_zone(due, schedule)} is moved to {_in_zone(to, schedule)}."


def change(options: Options) -> Iterator[str]:
    (schedule,) = named([options["name"]])
    due = moment(options["due"], schedule.timezone)
    try:
        payload = json.loads(options["payload"])
    except (ValueError, RecursionError) as error:
        raise CommandError(f"the payload is not JSON: {error}") from None
    reason = options["reason"]
    change_occurrence(schedule.name, due, payload, by=operator(), reason=reason)
    yield f"{schedule.name}: the job of {_in_zone(due, schedule)} will have this payload."


def restore(options: Options) -> Iterator[str]:
    (schedule,) = named([options["name"]])
    due = moment(options["due"], schedule.timezone)
    occurrences.restore(schedule.pk, due)
    yield f"{schedule.name}: {_in_zone(due, schedule)} does again what its rule says."


def _in_zone(at: datetime, schedule: Schedule) -> str:
    return span(at, at, schedule.timezone)


def backfill(options: Options) -> Iterator[str]:
    """Print the number of jobs of a backfill and, once confirmed, make them; or cancel one."""
    range_options = [options[key] for key in ("name", "begin", "end")]
    if options["cancel"] is not None:
        if any(range_options) or options["dry_run"]:
            raise CommandError("--cancel takes the id of a backfill and no other argument")
        yield from _cancel(options["cancel"])
        return
    if not all(range_options):
        raise CommandError("give the name of a schedule with --from and --to, or --cancel")
    (schedule,) = named([options["name"]])
    _checked(schedule.rule.check)
    begin = moment(options["begin"], schedule.timezone)
    end = moment(options["end"], schedule.timezone, end=True)
    due = schedule_operations.backfill_times(schedule, begin, end)
    if not due:
        yield f"{schedule.name}: every due time in this range already has a job."
        return
    request_of(schedule)
    jobs = f"{counted(len(due), 'job')} of {schedule.job_type}"
    yield f"{schedule.name}: {jobs}, due {span(due[0], due[-1], schedule.timezone)}."
    if options["dry_run"] or not (options["yes"] or _agreed()):
        yield "No job was made."
        return
    row = schedule_operations.backfill(schedule, begin, end, request_of, by=operator())
    yield f"Made {counted(row.job_count, 'job')} as backfill {row.pk}."


def _cancel(number: int) -> Iterator[str]:
    rows = Backfill.objects.using(conf().database).select_related("schedule")
    row = row_of(rows, number, "backfill")
    report = schedule_operations.cancel_backfill(row, by=operator())
    asked = f"; {counted(len(report.asked), 'running job')} asked to stop" if report.asked else ""
    jobs = f"{len(report.done)} of {counted(row.job_count, 'job')}"
    yield f"{row.schedule.name}: cancelled {jobs} of backfill {number}{asked}."


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise CommandError(
            "cannot ask for confirmation without a terminal; give --yes or --dry-run"
        )
    return input("Make them? [y/N] ").strip().lower() in ("y", "yes")


def _checked(call: Callable[[], T]) -> T:
    """The result of ``call``. Raises ``CommandError`` for a rule that is invalid."""
    try:
        return call()
    except ZonePrefix as error:
        raise CommandError(error.said("write --timezone {}")) from None
    except ValueError as error:  # such as a time zone that no longer exists
        raise CommandError(str(error)) from None
