"""The calendar: when all schedules are due in the next days."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from operator import itemgetter
from typing import Any

from django.contrib.admin import AdminSite
from django.db.models import F
from django.forms import Media
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.cron import check_timezone
from ...domain.due_times import DueTimes, due_between, with_changes
from ...domain.policies import Occurrence
from ...models import Schedule
from ...models.database import database_time
from ...models.querysets import ScheduleState
from ...models.schedule import rule_problem
from ...models.tick import with_changes as annotated
from ...separators import number_text
from ..base.actions import ModelAdmin
from ..base.formatting import badge, page_url, shortened
from ..layout.console_page import console_page
from ..layout.tables import Column, Table, urls_by_id
from .columns import OCCURRENCE, PLACE
from .display import CHANGES, YEAR, exception_of, in_words, state_badge, what_it_does, why_not

MOST = 1_000
"""Schedules that the page shows."""
DAYS, MOST_DAYS = 7, 31
LAST_DAY = date(9000, 1, 1)
SHOWN = 4
"""The times of a schedule that is due at most so often on a day. Of others, first and last."""
COLUMNS = (*Schedule.RULE_FIELDS, "jobs_made", "paused_reason", "stale", "next_due_at")


@dataclass(slots=True, kw_only=True)
class Day:
    begin: datetime
    end: datetime
    title: str
    form: str
    """How a time is written: on a day on which the clock of the page changes, with its zone."""
    move: SafeString
    """The end of a link that skips or moves its due times."""
    changes: set[str] = field(default_factory=set)
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def table(self) -> Table:
        columns = (
            *(Column(_("Due")), Column(_("Count"), number=True)),
            *(Column(_("Schedule")), Column(_("When"))),
        )
        rows = list(map(itemgetter("due", "count", "link", "when"), self.lines))
        return Table(self.title, columns, rows, css="jobs-days", heading=2)

    @property
    def sorted_changes(self) -> list[str]:
        return sorted(self.changes)


def calendar_view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    now, zone = database_time(), timezone.get_current_timezone()
    first, number = _span(request, now.astimezone(zone).date())
    enabled = Schedule.objects.using(conf().database).filter(enabled=True).only(*COLUMNS)
    enabled = enabled.annotate(**annotated(payloads=False))
    rows = list(enabled.order_by(F("next_due_at").asc(nulls_last=True), "pk")[: MOST + 1])
    days, not_firing = calendar_of(
        *(page.admin_site, rows[:MOST], now, zone, first, number),
        may_move=page.has_move_permission(request),  # type: ignore[attr-defined]
    )
    return console_page(
        page,
        request,
        "schedule/calendar.html",
        title=_("Calendar"),
        media=Media(css={"all": ["django_jobs/calendar.css"]}),
        days=days,
        not_firing=not_firing,
        number_not_firing=number_text(len(not_firing)),
        zone=timezone.get_current_timezone_name(),
        first=first,
        number_of_days=number,
        most_days=MOST_DAYS,
        more=len(rows) > MOST,
        most=number_text(MOST),
    )


def _span(request: HttpRequest, today: date) -> tuple[date, int]:
    """The first day, not before today, and how many days."""
    try:
        first = date.fromisoformat(request.GET.get("from", ""))
    except ValueError:
        first = today
    try:
        number = int(request.GET.get("days", "")[:9])
    except ValueError:
        number = DAYS
    return min(max(first, today), LAST_DAY), min(max(number, 1), MOST_DAYS)


def calendar_of(
    site: AdminSite,
    schedules: Iterable[Any],
    now: datetime,
    zone: tzinfo,
    first: date,
    number: int,
    *,
    may_move: bool = False,
) -> tuple[list[Day], list[dict[str, str]]]:
    """The days from ``first`` on, without the time before ``now``, and the schedules that do not
    fire. A day is one of the clock of ``zone``. With ``may_move``, a line has a link to the page of
    its exceptions."""
    days = [_day(first + timedelta(days=passed), now, zone) for passed in range(number)]
    not_firing = []
    names = "django_jobs_schedule_change", OCCURRENCE
    change_url, moving_url = (urls_by_id(page_url(site, name, 0)) for name in names)
    for schedule in schedules:
        url, text = change_url(schedule.pk), shortened(schedule.name)
        name = format_html('<a href="{}">{}</a>', url, text)
        if schedule.is_armed:
            try:
                moving = moving_url(schedule.pk) if may_move else ""
                _add(days, schedule, name, now, zone, moving)
                continue
            except (ValueError, OverflowError) as error:  # the row was not written by a form
                why = rule_problem(error)
            status: str = badge("error", ScheduleState.ERROR.label)
        else:
            status, why = state_badge(schedule, now), PLACE.sub("", why_not(schedule))
        not_firing.append(
            {"badge": status, "link": name, "why": shortened(why, 200) if why else ""}
        )
    for day in days:
        day.lines.sort(key=itemgetter("at"))
    return days, not_firing


def _day(day: date, now: datetime, zone: tzinfo) -> Day:
    today = now.astimezone(zone).date()
    midnight, next_one = (
        datetime.combine(one, time(), tzinfo=zone) for one in (day, day + timedelta(days=1))
    )
    title = f"{date_format(day, 'l')}, {date_format(day)}"
    begin = max(midnight.astimezone(UTC), now)
    return Day(
        begin=begin,
        end=next_one.astimezone(UTC),
        title=_("Today, %(day)s") % {"day": title} if day == today else title,
        form=" %Z" if midnight.utcoffset() != next_one.utcoffset() else "",
        move=format_html('?from={}">{}</a>', begin.astimezone(zone).date(), _("Skip or move…")),
    )


def _add(
    days: Sequence[Day], schedule: Any, name: str, now: datetime, zone: tzinfo, moving: str
) -> None:
    """Add a line to each day on which the schedule is due, as long as it has jobs left. The due
    times before the first day are counted for a year."""
    rule, left, found = schedule.rule, schedule.jobs_left, []
    if left is not None:
        left -= due_between(rule, now, min(days[0].begin, now + YEAR), 0, left).count
    for day in days:
        due = due_between(rule, day.begin, day.end, SHOWN, left)
        due, exceptions = with_changes(rule, due, day.begin, day.end, SHOWN, left)
        found.append((day, due, exceptions))
        if left is not None:
            left -= due.count
    link = format_html(' <a href="{}', moving) if moving else None
    when = format_html("{}", in_words(rule.cron, rule.every))
    if rule.cron:
        when += format_html(' <span class="jobs-quiet">{}</span>', rule.timezone)
    for day, due, exceptions in found:
        if due.change:
            day.changes.add(f"{rule.timezone}: {CHANGES[due.change]}")
        if due.count or due.left_out or exceptions:
            # Safe texts are put together as they are: to format them is a third of such a page.
            shown = when
            if due.change:
                shown += _change(due, rule.timezone)
            if exceptions:
                shown += _exceptions(exceptions, day, zone)
            if link is not None:
                shown += link + day.move
            line = {
                "at": due.first[0] if due.first else day.end,
                "due": _times(due, zone, day.form),
                "count": number_text(due.count),
                "link": name,
                "when": shown,
            }
            day.lines.append(line)


def _times(due: DueTimes, zone: tzinfo, form: str) -> str:
    if due.last is not None and due.count > SHOWN:
        first, last = (_clock(at, zone, form) for at in (due.first[0], due.last))
        return f"{first} – {last}"  # noqa: RUF001
    return ", ".join(_clock(at, zone, form) for at in due.first) or _("not due")


def _change(due: DueTimes, timezone_name: str) -> SafeString:
    """What the clock of a schedule does on that day, and what comes of it: its times there."""
    text = str(CHANGES[due.change])
    if due.left_out:
        text = f"{text}: {Schedule.Dst.SKIP.label}"
    elif 0 < due.count <= SHOWN:
        text = f"{text}: {_times(due, check_timezone(timezone_name), ' %Z')}"
    return format_html(' <span class="jobs-change">{}</span>', text)


def _exceptions(exceptions: Sequence[Occurrence], day: Day, zone: tzinfo) -> SafeString:
    """What comes of the due times of a day that have one, and of those that are moved to it."""
    texts = []
    for one in exceptions:
        assert one.change is not None
        if day.begin <= one.due < day.end:
            texts.append((_clock(one.due, zone, day.form), what_it_does(one.change, zone)))
        else:
            texts.append((_clock(one.at, zone, day.form), exception_of(one, zone)))
    return format_html_join("", ' <span class="jobs-change">{}: {}</span>', texts)


def _clock(at: datetime, zone: tzinfo, form: str) -> str:
    local = at.astimezone(zone)
    seconds = "" if local.second == local.microsecond == 0 else ":%S"
    return local.strftime(f"%H:%M{seconds}{form}")
