"""The actions of ``jobschedule``. Each yields the lines to print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from django.core.management.base import CommandError
from django.utils import timezone as clock

from ...api.occurrences import change_occurrence
from ...api.schedules import request_of
from ...conf import conf
from ...domain.cron import ZonePrefix
from ...domain.schedules import Rule
from ...lifecycle.editing import occurrences
from ...lifecycle.operations import schedules as schedule_operations
from ...models import Job, Schedule
from ..base import counted, operator
from .table import (
    as_rows,
    as_table,
    backfill_of,
    chosen,
    coming,
    moment,
    named,
    reason,
    span,
    with_reason,
)

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
    yield as_table(rows) if rows else "No schedule matches."
    if total > len(rows):
        yield f"Showing {len(rows):,} of {total:,}; raise --limit, or give a part of a name."


def times(options: Options) -> Iterator[str]:
    """List the next due times of a schedule or an expression."""
    if not 1 <= options["count"] <= MOST_TIMES:
        raise CommandError(f"--count takes 1 to {MOST_TIMES:,}, not {options['count']}")
    if (options["name"] is None) == (options["cron"] is None):
        raise CommandError("give either the name of a schedule or --cron")
    if options["cron"] is not None:
        zone, dst = options["timezone"] or "UTC", options["dst"] or "once"
        rule, after = Rule(cron=options["cron"], timezone=zone, dst=dst), clock.now()
    elif options["timezone"] or options["dst"]:
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
    yield f"{schedule.name}: {_local(due, schedule)} is skipped. Its tick will say so."


def move(options: Options) -> Iterator[str]:
    (schedule,) = named([options["name"]])
    due, to = (moment(options[key], schedule.timezone) for key in ("due", "to"))
    occurrences.move(schedule.pk, due, to, by=operator(), reason=options["reason"])
    yield f"{schedule.name}: {_local(due, schedule)} is moved to {_local(to, schedule)}."


def change(options: Options) -> Iterator[str]:
    (schedule,) = named([options["name"]])
    due = moment(options["due"], schedule.timezone)
    try:
        payload = json.loads(options["payload"])
    except (ValueError, RecursionError) as error:
        raise CommandError(f"the payload is not JSON: {error}") from None
    reason = options["reason"]
    change_occurrence(schedule.name, due, payload, by=operator(), reason=reason)
    yield f"{schedule.name}: the job of {_local(due, schedule)} will have this payload."


def restore(options: Options) -> Iterator[str]:
    (schedule,) = named([options["name"]])
    due = moment(options["due"], schedule.timezone)
    occurrences.restore(schedule.pk, due)
    yield f"{schedule.name}: {_local(due, schedule)} does again what its rule says."


def _local(at: datetime, schedule: Schedule) -> str:
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
    row = backfill_of(number)
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
