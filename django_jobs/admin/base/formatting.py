"""Formats values for the pages: badges, times, durations, and links that the user may see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, tzinfo
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.sites import AdminSite
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import mark_safe
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext, pgettext

from ...domain.numbers import duration_text
from ...models import Job, Worker
from ...models.fields import DistantTime
from ...separators import localized, number_text

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise
    from django.utils.safestring import SafeString


NOTHING = "-"
NAMED = 5
"""Rows of an answer that are named."""
MOST_COUNTED = 1_000

REFUSED_STATES = (
    gettext_noop("it is waiting"),
    gettext_noop("it is scheduled"),
    gettext_noop("it is blocked"),
    gettext_noop("it is ready"),
    gettext_noop("it is running"),
    gettext_noop("it is succeeded"),
    gettext_noop("it is failed"),
    gettext_noop("it is dead"),
    gettext_noop("it is cancelled"),
    gettext_noop("it is expired"),
    gettext_noop("it is draining"),
    gettext_noop("it is stopped"),
    gettext_noop("it is lost"),
)
"""Refusals because of the state of a job, a workflow run or a worker."""
NO_WORKER = gettext_noop("there is no such worker")
"""Marked here, because the text is put together from the name of a model."""

ICONS = {
    "pending": "…",
    "completed": "✔",
    "waiting": "…",
    "scheduled": "◷",
    "blocked": "⊘",
    "ready": "○",
    "running": "▶",
    "succeeded": "✔",
    "dead": "✖",
    "cancelled": "⊖",
    "failed": "✖",
    "timed_out": "◷",
    "lost": "?",
    "snoozed": "↷",
    "released": "↶",
    "paused": "‖",
    "draining": "▽",
    "stopped": "■",
    "expired": "!",
    "replayed": "↻",
    "on": "◷",
    "overdue": "!",
    "error": "✖",
    "caution": "!",
    "disabled": "⊖",
    "ended": "■",
    "declared": "○",
    "gone": "?",
    "added": "+",
    "changed": "~",
    "fired": "✔",
    "skipped_overlap": "↷",
    "skipped_late": "↷",
    "skipped": "⤳",
    "suppressed": "⊖",
    "breaker_open": "✖",
    "half_open": "◐",
    "over_limit": "!",
    "busy": "●",
    "ok": "✔",
}


def badge(state: str, label: _StrOrPromise) -> SafeString:
    """A state as icon and text, so that it never depends on colour alone."""
    return format_html(
        '<span class="jobs-badge jobs-{}"><span class="jobs-icon" aria-hidden="true">{}</span>'
        "{}</span>",
        state if state in ICONS else "unknown",
        ICONS.get(state, "?"),
        label,
    )


def choice_badge(row: Any, column: str) -> SafeString:
    """The badge of a column with choices. Django's ``get_..._display`` hashes the label of each
    choice at each call, which was a sixteenth of the time of a list."""
    value, field = getattr(row, column), row._meta.get_field(column)
    return badge(value, dict(field.flatchoices).get(value, value))


def usage(run: Any) -> str:
    """What a run used, as far as it was measured."""
    parts = []
    if run.cpu_seconds is not None:
        parts.append(_("%(seconds)s s CPU") % {"seconds": number_text(run.cpu_seconds, ",.3g")})
    if run.max_rss_kb is not None:
        parts.append(f"{number_text(run.max_rss_kb / 1024, ',.0f')} MB")
    if run.queries is not None:
        values = {"queries": run.queries, "seconds": number_text(run.query_seconds or 0.0, ",.3g")}
        parts.append(_("%(queries)s queries in %(seconds)s s") % values)
    return ", ".join(parts) or NOTHING


def counted(number: int) -> str:
    """``12``, or ``1,000+`` if there are more."""
    return number_text(min(number, MOST_COUNTED), more=number > MOST_COUNTED)


def duration(length: timedelta | None) -> str:
    """A length of time; a dash for None."""
    return NOTHING if length is None else localized(duration_text(length.total_seconds()))


def moment(at: datetime | None) -> str:
    """A time to the second, for a table. Its title has the time zone."""
    return NOTHING if at is None else _time(at, _to_the_second)


def moment_in_zone(at: datetime | None, zone: tzinfo | None = None) -> str:
    """The same with the time zone, for a time that stands alone; of the reader, or ``zone``."""
    return NOTHING if at is None else _time(at, clock_text, zone)


def clock_text(local: datetime) -> str:
    return f"{_to_the_second(local)}\N{NO-BREAK SPACE}{date_format(local, 'T')}"


def due_text(at: datetime, zone: tzinfo) -> str:
    """A due time in ``zone`` as plain text, with its weekday, and the fraction of its second."""
    local = at.astimezone(zone)
    fraction = f".{local.microsecond:06}".rstrip("0") if local.microsecond else ""
    return f"{date_format(local, 'D')}, {_to_the_second(local)}{fraction} {local.tzname()}"


def _to_the_second(local: datetime) -> str:
    if local.year == timezone.localtime(timezone=local.tzinfo).year:
        return date_format(local, pgettext("the format of a time of this year", "M j, H:i:s"))
    return date_format(local, pgettext("the format of a time", "M j, Y, H:i:s"))


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago ``at`` was. ``now`` is the database's time."""
    if at is None:
        return NOTHING
    distance = at - now
    if distance > timedelta(0):
        text = _("in %(time)s") % {"time": duration(distance)}
    else:
        text = _("%(time)s ago") % {"time": duration(-distance)}
    return _time(at, lambda local: text)


def refusal_text(why: object) -> str:
    """Why something was refused, in the reader's language. A text with values in it stays."""
    return _(str(why))


def refusals_text(refused: Mapping[int, Any]) -> str:
    """How many rows were refused, with the reasons of the first ones."""
    count = len(refused)
    named = [f"#{id_}: {refusal_text(why)}" for id_, why in list(refused.items())[:NAMED]]
    text = ngettext(
        "%(count)s was not changed. %(named)s", "%(count)s were not changed. %(named)s", count
    ) % {"count": number_text(count), "named": "; ".join(named)}
    if count > NAMED:
        rest = count - NAMED
        text += "; " + ngettext("and %(rest)s more", "and %(rest)s more", rest) % {
            "rest": number_text(rest)
        }
    return text


def moment_and_age(at: datetime | None, now: datetime) -> str:
    if at is None or isinstance(at, DistantTime):
        return moment(at)
    return format_html("{} ({})", moment_in_zone(at), ago(at, now))


def pause_sentence(row: Any) -> str:
    """Since when a row is paused, by whom, until when and why; empty if it is not."""
    if not row.paused:
        return ""
    sentence = format_html("{} {}", badge("paused", _("paused")), ago(row.paused_at, row.read_at))
    if row.paused_by:
        by = _("by %(user)s") % {"user": row.paused_by}
        sentence = format_html("{} {}", sentence, by)
    if row.paused_until:
        sentence = format_html("{} {} {}", sentence, _("until"), moment_in_zone(row.paused_until))
    return format_html("{}: {}", sentence, row.paused_reason) if row.paused_reason else sentence


def column(
    label: _StrOrPromise, show: Callable[[Any], Any], ordering: str | None = None
) -> Callable[[Any, Any], Any]:
    """A column of a list, or a field of a page: what ``show`` makes of a row."""

    @admin.display(description=label, ordering=ordering)
    def shown(page: Any, row: Any) -> Any:
        return show(row)

    return shown


def moment_column(
    field: str,
    label: _StrOrPromise,
    show: Callable[[datetime | None, datetime], str] = moment_and_age,
) -> Callable[[Any, Any], Any]:
    return column(label, lambda row: show(getattr(row, field), row.read_at), field)


def text_column(
    field: str, label: _StrOrPromise, show: Callable[[str], str] = lambda text: text or NOTHING
) -> Callable[[Any, Any], Any]:
    return column(label, lambda row: show(getattr(row, field)), field)


def _time(at: datetime, text_of: Callable[[datetime], str], zone: tzinfo | None = None) -> str:
    if isinstance(at, DistantTime):
        return at.text
    local = timezone.localtime(at, zone)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        local.isoformat(),
        f"{local:%Y-%m-%d %H:%M:%S.%f %Z}",
        text_of(local),
    )


def shortened(text: str, length: int = 80) -> str:
    """The first line of ``text``, cut to ``length`` characters."""
    return _cut(text.strip().split("\n", 1)[0], length) or NOTHING


def _cut(text: str, length: int) -> str:
    # Truncator normalizes first. A list shortens ten texts a row, and nearly all of them fit.
    return text if len(text) <= length else Truncator(text).chars(length)


def one_line(text: str, whole: str = "", *, breaks: bool = False) -> str:
    """The first line of ``text``, which a list cuts to the width of its column. Its title is
    ``whole``, or else the text. A name that ``breaks`` does so behind its dots and underscores,
    and not inside a word."""
    title, shown = _cut(whole or text, 1_000), shortened(text, 200)
    return format_html('<span title="{}">{}</span>', title, with_breaks(shown) if breaks else shown)


@lru_cache(maxsize=1_000)  # a list repeats few names
def with_breaks(name: str) -> str:
    """A name that may be broken behind its dots and underscores."""
    parts = re.findall(r"[^._]*[._]|[^._]+", name)
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in parts))


def with_reason(state: str, reason: str) -> str:
    """The state in a list, and the reason of it in lines below. That of a pause is whole; an error
    may be longer, and the page of the row has it."""
    if not reason:
        return state
    return format_html('{} <span class="jobs-state-reason">{}</span>', state, _cut(reason, 300))


def joined(separator: str, parts: Iterable[Any]) -> str:
    """The parts, escaped unless they are markup."""
    return format_html_join(separator, "{}", ((part,) for part in parts))


def with_quiet_line(text: str, quiet: str) -> str:
    return format_html('{}<div class="jobs-quiet">{}</div>', text, quiet) if quiet else text


def preformatted(text: str) -> str:
    return format_html('<pre class="jobs-text">{}</pre>', text) if text else NOTHING


def page_url(site: AdminSite, name: str, *arguments: Any) -> str:
    """The address of a page of ``site`` by the name of its URL."""
    return reverse(f"admin:{name}", args=arguments, current_app=site.name)


def change_url(site: AdminSite, model: type[Model], pk: Any) -> str:
    return page_url(site, f"{model._meta.app_label}_{model._meta.model_name}_change", pk)


def list_url(site: AdminSite, model: type[Model], **filters: Any) -> str:
    """The address of a model's list, or of the rows in it that match the filters."""
    url = page_url(site, f"{model._meta.app_label}_{model._meta.model_name}_changelist")
    return f"{url}?{urlencode(filters)}" if filters else url


def list_link(site: AdminSite, model: type[Model], text: str, **filters: Any) -> str:
    return format_html('<a href="{}">{}</a>', list_url(site, model, **filters), text)


def link(site: AdminSite, model: type[Model], pk: Any, text: str) -> str:
    return format_html('<a href="{}">{}</a>', change_url(site, model, pk), text)


def level_badge(level: str) -> str:
    texts = {"ok": _("ok"), "high": _("high"), "full": _("full")}
    return badge({"ok": "succeeded", "high": "overdue", "full": "error"}[level], texts[level])


class Visible:
    """The pages of a site that the user of a request may see."""

    def __init__(self, site: AdminSite, request: HttpRequest) -> None:
        self.site = site
        self.request = request
        self.sees = cache(self._sees)

    def _sees(self, model: type[Model]) -> bool:
        if not self.site.is_registered(model):
            return False
        page: Any = self.site.get_model_admin(model)
        return bool(page.has_view_or_change_permission(self.request))

    def link(self, model: type[Model], pk: Any, text: str) -> str:
        """The text, as a link to the row if the user may see it."""
        if pk is None or not self.sees(model):
            return text
        return link(self.site, model, pk, text)

    def worker(self, pk: int | None, workers: dict[int, Worker]) -> str:
        """A worker by its name, as a link to it, or by its number if its row has been deleted."""
        if pk is None:
            return NOTHING
        worker = workers.get(pk)
        if worker is None:
            return _("worker %(id)s (deleted)") % {"id": pk}
        return self.link(Worker, pk, str(worker))

    def list_link(self, model: type[Model], text: str, **filters: Any) -> str:
        """The text, as a link to the list if the user may see it."""
        if not self.sees(model):
            return text
        return list_link(self.site, model, text, **filters)

    def count_link(self, model: type[Model], number: int, **filters: Any) -> str:
        """How many rows match the filters, as a link to them."""
        return self.list_link(model, counted(number), **filters) if number else "0"

    def list_url(self, model: type[Model], **filters: Any) -> str:
        return list_url(self.site, model, **filters)

    def page_url(self, name: str) -> str:
        """The address of a page by the name of its URL; empty if there is none."""
        try:
            return page_url(self.site, name)
        except NoReverseMatch:
            return ""

    def job(self, id_: int, text: str = "") -> str:
        """A job, as a link to it."""
        return self.link(Job, id_, text or f"#{id_}")
