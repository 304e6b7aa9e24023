"""Formats schedules: the rule in words, the state, the next due times."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.text import get_text_list
from django.utils.translation import (
    get_language,
    gettext_lazy,
    gettext_noop,
    ngettext,
)
from django.utils.translation import gettext as _

from ... import registry
from ...domain.cron_text import MONTHS, WEEKDAYS, describe, needs_both_elsewhere
from ...domain.numbers import exactly
from ...models import Schedule
from ...models.schedule import rule_problem
from ...separators import localized, number_text
from ..base.formatting import NOTHING, ago, badge, due_text, moment_in_zone

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

    from ...domain.policies import Change, Occurrence
    from ...domain.schedules import Rule

PREVIEWED = 5
YEAR = timedelta(days=365)
"""How far due times are counted."""
NAMES = (*WEEKDAYS, *MONTHS)

CHANGES: dict[str | None, _StrOrPromise] = {
    "clock goes forward": gettext_lazy("clock goes forward"),
    "clock goes back": gettext_lazy("clock goes back"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A rule in words with its next due times, or its error."""

    words: str = ""
    zone: str = ""
    times: tuple[dict[str, str], ...] = ()
    note: str = ""
    left_out: str = ""
    """The next dates on which it would be due if they were not excluded."""
    error: str = ""


def preview(rule: Rule, now: datetime, jobs_left: int | None = None) -> Preview:
    """The next due times of ``rule`` after ``now``, if a schedule may make ``jobs_left`` jobs."""
    from ...domain.cron import check_timezone

    try:
        rule.check()
        due = list(islice(rule.due_times(now), min(PREVIEWED, jobs_left or PREVIEWED)))
    except (ValueError, OverflowError) as error:
        return Preview(error=rule_problem(error))
    zone = check_timezone(rule.timezone)
    if jobs_left == 0:
        due, note = [], _("Made all of its jobs. A larger maximum starts it again.")
    elif not due:
        note = _("It has no further due times.")
    elif len(due) < PREVIEWED:
        note = _("It has no due times after these.")
    else:
        note = _left(rule, now, jobs_left)
    if needs_both_elsewhere(rule.cron):
        either = _(
            "A day that matches either day field is due; Debian's cron and pg_cron need both."
        )
        note = f"{either} {note}"
    return Preview(
        words=in_words(rule.cron, rule.every),
        zone=rule.timezone,
        times=tuple(_due_time(one, zone, rule.timezone) for one in rule.occurrences(due)),
        note=note,
        left_out=_left_out(rule, now, zone) if due else "",
    )


def _left_out(rule: Rule, now: datetime, zone: tzinfo) -> str:
    """The coming dates on which it would be due if they were not excluded."""
    from ...domain.due_times import due_between
    from ...domain.schedules import DAY

    today = now.astimezone(zone).date()
    every_day = replace(rule, excluded_dates=frozenset())
    dates = []
    for day in sorted(day for day in rule.excluded_dates if day >= today):
        begin = datetime.combine(day, time(), zone).astimezone(UTC)
        with suppress(OverflowError):  # past the year 9999
            end = datetime.combine(day + DAY, time(), zone).astimezone(UTC)
            if due_between(every_day, max(begin, now), end, 0).count:
                dates.append(date_format(day))
    if not dates:
        return ""
    named, more = dates[:PREVIEWED], len(dates) - PREVIEWED
    if more > 0:
        text = ngettext("%(count)s more date", "%(count)s more dates", more)
        named.append(text % {"count": number_text(more)})
    return _("Not due on %(dates)s.") % {"dates": get_text_list(named, _("and"))}


def _left(rule: Rule, now: datetime, jobs_left: int | None) -> str:
    """How often it is due until it ends; empty if it does not end, or out of reach."""
    from ...domain.due_times import due_between
    from ...domain.schedules import INSTANT

    if rule.ends_at is None and jobs_left is None:
        return ""
    try:
        year = max(now, rule.starts_at or now) + YEAR
        number = due_between(rule, now + INSTANT, year, 0, jobs_left).count
    except OverflowError:  # past the year 9999
        return ""
    if jobs_left is not None and (rule.ends_at is None or number == jobs_left):
        number = jobs_left
        text = ngettext(
            "It ends after %(count)s more job.", "It ends after %(count)s more jobs.", number
        )
    elif rule.ends_at is not None and rule.ends_at < year:
        text = ngettext(
            "It has %(count)s due time until it ends.",
            "It has %(count)s due times until it ends.",
            number,
        )
    else:
        text = ngettext(
            "It has %(count)s due time within 365 days, and ends later.",
            "It has %(count)s due times within 365 days, and ends later.",
            number,
        )
    return text % {"count": number_text(number)}


def in_words(cron: str, every: float | None) -> str:
    """``at 02:30 on weekdays``, ``every 1 h 30 min``."""
    if every is not None:
        return _("every %(interval)s") % {"interval": localized(exactly(every))}
    return cron_in_words(cron) if cron else NOTHING


VALUE = re.compile(
    rf"\d\d:\d\d(?:(?:, | and )\d\d:\d\d)*|\d+"
    rf"|(?:{'|'.join(NAMES)})(?:(?:, | and )(?:{'|'.join(NAMES)}))*"
)
"""What differs between two rules of a kind: times, numbers and names of days and months."""
KINDS = (
    gettext_noop("every minute"),
    gettext_noop("every %s minutes"),
    gettext_noop("every %s minutes on weekdays"),
    gettext_noop("every %s minutes between %s"),
    gettext_noop("every %s minutes between %s on weekdays"),
    gettext_noop("every hour"),
    gettext_noop("every hour on weekdays"),
    gettext_noop("every hour from %s to %s"),
    gettext_noop("every hour from %s to %s on weekdays"),
    gettext_noop("at minute %s of every hour"),
    gettext_noop("every %s hours"),
    gettext_noop("at %s every day"),
    gettext_noop("at %s on weekdays"),
    gettext_noop("at %s on weekends"),
    gettext_noop("at %s on %s"),
    gettext_noop("at %s from %s to %s"),
    gettext_noop("at %s on day %s of every month"),
    gettext_noop("at %s on day %s of %s"),
    gettext_noop("at %s on the last day of every month"),
)
"""The rules that most schedules have."""


@lru_cache(maxsize=1_024)
def _in_words(cron: str, language: str | None) -> str:
    text = describe(cron)
    kind = VALUE.sub("%s", text)
    translated = _(kind)
    if translated != kind:
        return translated % tuple(map(_value, VALUE.findall(text)))
    return text if (language or "en").startswith("en") else cron


def _value(text: str) -> str:
    words = {name: _(name) for name in NAMES}
    words[" and "] = _(" and ")
    return "".join(words.get(word, word) for word in re.split(r"(, | and )", text))


def cron_in_words(cron: str) -> str:
    """The rule in the reader's language, or itself where that has no words for it."""
    return _in_words(cron, get_language())


def is_in_code(schedule: Schedule) -> bool:
    """Whether code declares it, so that the next migrate writes it again."""
    return schedule.declared and schedule.name in registry.schedules()


def state_badge(schedule: Schedule, now: datetime) -> str:
    state = schedule.state_at(now)
    return badge(state, state.label)


def reason_of(text: str) -> str:
    """The reason of a tick, without the number of the form that made its job only once."""
    return re.sub(r", form [0-9a-f]+$", "", text)


def why_not(schedule: Schedule) -> str:
    """Why it does not fire: the error, the reason of the pause, or that it made all of its jobs."""
    if schedule.error:
        return schedule.error
    if schedule.is_armed and schedule.jobs_left == 0:
        return _("Made all of its jobs. A larger maximum starts it again.")
    return schedule.paused_reason if schedule.paused_at is not None else ""


def next_due(schedule: Schedule, now: datetime) -> str:
    """Its next due time in its own zone, and the time until then."""
    if not schedule.is_armed:
        return NOTHING
    if schedule.stale:
        return _("a worker is about to compute it")
    if schedule.next_due_at is None:
        return NOTHING
    zone = schedule.zone
    notes: list[str] = []
    local = moment_in_zone(schedule.next_due_at, zone)
    with suppress(ValueError):  # a rule that a worker will refuse
        coming = schedule.rule.occurrences([schedule.next_due_at])
        notes = [exception_of(one, zone) for one in coming if one.change is not None]
    return format_html(
        '{} <span class="jobs-quiet">{}</span>{}',
        local,
        ago(schedule.next_due_at, now),
        format_html_join("", ' <span class="jobs-change">{}</span>', ((note,) for note in notes)),
    )


def exception_of(one: Occurrence, zone: tzinfo) -> str:
    """The exception of what comes, as it is seen from the time at which it comes."""
    return "" if one.change is None else what_it_does(one.change, zone, there=True)


def what_it_does(change: Change, zone: tzinfo, *, there: bool = False) -> str:
    """The exception of a due time: ``skipped``, or moved: ``there`` from where, else to where."""
    if change.skipped:
        return _("skipped")
    texts = []
    if change.moved_to is not None and there:
        texts.append(_("moved from %(time)s") % {"time": due_text(change.due, zone)})
    elif change.moved_to is not None:
        texts.append(_("moved to %(time)s") % {"time": due_text(change.moved_to, zone)})
    if change.payload_json is not None:
        texts.append(_("with other arguments"))
    return ", ".join(texts)


def _due_time(one: Occurrence, zone: tzinfo, name: str) -> dict[str, Any]:
    """In the schedule's zone and, if that is another, in UTC; with the change of the clock on that
    day, and with its exception."""
    from ...domain.cron import clock_change

    change: Any = CHANGES.get(clock_change(one.at, name), "")
    return {
        "local": due_text(one.at, zone),
        "utc": "" if name == "UTC" else due_text(one.at, UTC),
        "change": str(change),
        "exception": exception_of(one, zone),
    }
