"""The state of a resource or a tenant in sentences."""

from __future__ import annotations

from datetime import timedelta
from math import floor
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...metrics.limits import LimitDetails, LimitState, rate_text
from ...models import BreakerState, Resource, Tenant
from ...separators import number_text
from ..base.formatting import ago, badge, pause_sentence

LABELS = {
    LimitState.PAUSED: gettext_lazy("paused"),
    LimitState.BREAKER_OPEN: gettext_lazy("breaker open"),
    LimitState.HALF_OPEN: gettext_lazy("breaker half open"),
    LimitState.OVER_LIMIT: gettext_lazy("over its limit"),
    LimitState.BUSY: gettext_lazy("busy"),
    LimitState.OK: gettext_lazy("ok"),
}


def state_sentence(row: Any, details: LimitDetails) -> str:
    """What holds its jobs, or that nothing does."""
    taken, limit = taken_of(details), row.max_concurrency
    state = LimitState.of(row, taken)
    if state == LimitState.PAUSED:
        return pause_sentence(row)
    text = {
        LimitState.BREAKER_OPEN: _("No job that uses it starts."),
        LimitState.HALF_OPEN: _("Few jobs may try whether it works again."),
        LimitState.OVER_LIMIT: _("%(taken)s of %(limit)s are taken. No job starts before enough "
                                 "of them have ended."),
        LimitState.BUSY: _("All %(limit)s are taken."),
        LimitState.OK: _("No limit.") if limit is None else _("%(taken)s of %(limit)s are taken."),
    }[state] % {"taken": taken_number(details), "limit": number_text(limit or 0)}  # fmt: skip
    return format_html("{} {}", badge(state, LABELS[state]), text)


def taken_of(details: LimitDetails) -> int:
    counts = details.row("taken")
    return int(counts["ready"] + counts["running"])


def taken_number(details: LimitDetails) -> str:
    """How many jobs are ready or running; with a plus if more may be."""
    return number_text(taken_of(details)) + ("+" if details.more_hold else "")


def waiting_of(details: LimitDetails) -> str:
    number = int(details.row("waiting")["jobs"])
    if not number:
        return _("No job waits.")
    text = ngettext("%(count)s job waits.", "%(count)s jobs wait.", number)
    return text % {"count": waiting_number(details)}


def waiting_number(details: LimitDetails) -> str:
    return number_text(int(details.row("waiting")["jobs"])) + ("+" if details.more_wait else "")


def breaker_sentence(row: Any, details: LimitDetails) -> str:
    """The state of the breaker, why, and when it changes next."""
    from ...domain.breaker import PROBES

    state = BreakerState(row.breaker_state)
    if state == BreakerState.CLOSED:
        return _closed(row, details)
    why = _reason(row.breaker_reason)
    since = ago(row.breaker_changed_at, row.read_at)
    if state == BreakerState.HALF_OPEN:
        text = _("Half opened {since}{why}. It closes after {probes} successes, {seen} so far; a "
                 "failure opens it again.")  # fmt: skip
        seen = counted(details, "succeeded")
        return format_html(text, since=since, why=why, probes=PROBES, seen=seen)
    return format_html(_("Opened {since}{why}. {next}"), since=since, why=why, next=_next_try(row))


def _closed(row: Resource, details: LimitDetails) -> str:
    from ..overview.numbers import seconds_text

    if row.breaker_failures is None:
        return _("Closed. It never opens by itself: no number of failures is set.")
    text = ngettext(
        "Closed: %(count)s failure in the last %(window)s. It opens at %(most)s.",
        "Closed: %(count)s failures in the last %(window)s. It opens at %(most)s.",
        failures := counted(details, "failed"),
    )
    window = seconds_text(row.breaker_window)
    return text % {
        "count": number_text(failures),
        "window": window,
        "most": number_text(row.breaker_failures),
    }


def _next_try(row: Any) -> str:
    from ..overview.numbers import seconds_text

    try:
        at = row.breaker_changed_at + timedelta(seconds=row.breaker_open_for)
    except (OverflowError, TypeError):
        return _("It is tried again after %(time)s.") % {"time": seconds_text(row.breaker_open_for)}
    if at <= row.read_at:
        return _("It is tried with the next job.")
    return format_html(_("It is tried again {when}."), when=ago(at, row.read_at))


def counted(details: LimitDetails, how: str) -> int:
    """The attempts of the window that ended like this since the breaker changed."""
    return sum(row[how] for row in details.parts["outcomes"] if row["counts"])


def rate_sentence(row: Resource, details: LimitDetails) -> str:
    """How many starts the rate leaves, and when the next one comes."""
    from ..overview.numbers import seconds_text

    assert row.rate is not None
    tokens, pace = details.row("meters")["tokens"], row.rate / row.rate_seconds
    rate = rate_text(row.rate, row.rate_seconds)
    if tokens >= 1:
        text = _("%(rate)s: %(left)s of %(burst)s starts are left.")
        return text % {
            "rate": rate,
            "left": number_text(floor(tokens)),
            "burst": number_text(burst(row)),
        }
    wait = seconds_text((1 - tokens) / pace)
    return _("%(rate)s, used up: the next start in %(time)s.") % {"rate": rate, "time": wait}


def burst(row: Resource | Tenant) -> int:
    """How many jobs may start at once after a rest."""
    return row.burst or -floor(-(row.rate or 0))


def budget_sentence(row: Resource, details: LimitDetails) -> str:
    """How many of the recent starts were retries, and how many more may be."""
    from ...domain.admission import retries_allowed

    budget, meters = row.retry_budget or 0.0, details.row("meters")
    share = _("%(share)s of the starts of the last minute were retries, the budget is %(budget)s.")
    shown = share % {"share": retry_share(details), "budget": number_text(budget, ".0%")}
    if budget >= 1:
        return shown
    left = retries_allowed(budget, meters["starts"], meters["retries"])
    if not left:
        return f"{shown} {_('Retries wait until others have started.')}"
    text = ngettext("%(count)s retry may start now.", "%(count)s retries may start now.", left)
    return f"{shown} {text % {'count': f'{number_text(left)}'}}"


def retry_share(details: LimitDetails) -> str:
    meters = details.row("meters")
    return number_text(meters["retries"] / meters["starts"], ".0%") if meters["starts"] else "0%"


def _reason(text: str) -> str | SafeString:
    return f": {text.rstrip('.')}" if text else ""
