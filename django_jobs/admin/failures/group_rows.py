"""What the pages show of a group of failures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin.sites import AdminSite
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...domain.search_terms import means, term
from ...metrics.failures import FailureGroup, RowDetails, rows_of
from ...models import DeadLetter
from ...separators import number_text
from ..access.errors import class_alone, may_see_errors, without_secrets
from ..base.formatting import ago, list_url, page_url
from ..layout.charts import Chart, sparkline
from . import GROUP, GROUPS

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)


SPANS = {
    "1h": (timedelta(hours=1), _("Last hour")),
    "24h": (timedelta(hours=24), _("Last 24 hours")),
    "7d": (timedelta(days=7), _("Last 7 days")),
}
"""The times that can be chosen. The list of dead letters has filters of the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """The queue and the time that were chosen; empty for all."""

    queue: str = ""
    span: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> Narrowing:
        """The one of an address. A time that cannot be chosen is left out."""
        span = request.GET.get("span", "")
        queue = request.GET.get("queue", "").replace("\0", "")
        return cls(queue=queue, span=span if span in SPANS else "")

    @property
    def length(self) -> timedelta | None:
        return SPANS[self.span][0] if self.span else None

    @property
    def curve(self) -> _StrOrPromise:
        """What the curves cover."""
        return SPANS[self.span or "7d"][1]

    def filters(self, span: str = "span") -> dict[str, str]:
        """What an address needs for it. ``span`` is the name of the time there."""
        return {name: one for name, one in (("queue", self.queue), (span, self.span)) if one}


ALL = Narrowing()


def shown(groups: Iterable[FailureGroup], user: Any) -> tuple[FailureGroup, ...]:
    """The groups as ``user`` may see them: classes of errors alone, or messages without secrets."""
    text = without_secrets if may_see_errors(user) else class_alone
    return tuple(replace(group, error=text(group.error)) for group in groups)


class Code(NamedTuple):
    """What the runs of a group say: the version of the code in which its oldest job died, and the
    line where the newest did. Empty if unknown."""

    version: str
    place: str

    def is_of(self, versions: Iterable[str], places: Iterable[str]) -> bool:
        """Whether these are asked for. A part of a place is one or more of its words."""
        return all(self.version and means(one, self.version) for one in versions) and all(
            re.search(rf"(?<!\w){re.escape(one)}(?!\w)", self.place, re.IGNORECASE)
            for one in places
        )


def code_of(groups: Sequence[FailureGroup], with_places: bool) -> dict[FailureGroup, Code]:
    """The code of each group, by one statement. ``with_places`` has lines of tracebacks too."""
    keys = [
        (queue, group.job_type, group.fingerprint) for group in groups for queue in group.queues
    ]
    details = iter(one if with_places else one._replace(end="") for one in rows_of(keys))
    return {group: _code([next(details) for _ in group.queues]) for group in groups}


def _code(details: Sequence[RowDetails]) -> Code:
    """The oldest version and the newest place of all queues."""
    versions = [(one.since, one.version) for one in details if one.since and one.version]
    places = [(one.at, place) for one in details if one.at and (place := place_of(one.end))]
    return Code(min(versions)[1] if versions else "", max(places)[1] if places else "")


def rows(
    groups: Iterable[FailureGroup],
    code: Mapping[FailureGroup, Code],
    site: AdminSite,
    now: datetime,
    narrowing: Narrowing,
) -> list[dict[str, Any]]:
    """The lines of these groups. A line of code leads to all kinds that failed there, and says how
    many of those in ``code`` did."""
    alike = Counter(one.place for one in code.values())
    return [
        _row(group, code[group], alike[code[group].place], site, now, narrowing) for group in groups
    ]


def _row(
    group: FailureGroup,
    code: Code,
    alike: int,
    site: AdminSite,
    now: datetime,
    narrowing: Narrowing,
) -> dict[str, Any]:
    facts = [", ".join(group.queues)]
    if code.place:
        address, text = at_url(site, code.place, narrowing), code.place
        if alike > 1:
            text = gettext("%(place)s (%(count)s kinds)") % {"place": text, "count": alike}
        facts.insert(0, format_html('<a href="{}">{}</a>', address, text))
    if code.version:
        facts.append(gettext("since code %(version)s") % {"version": code.version})
    return {
        "group": group,
        "number": number_text(group.dead, more=group.dead_capped),
        "retried": number_text(group.retried, more=group.retried_capped) if group.retried else "",
        "url": group_url(site, group, narrowing),
        "dead_url": dead_url(site, group, narrowing),
        "error": group.error or gettext("no error"),
        "facts": facts,
        "trend": trend_of(group, narrowing.curve),
        "first": ago(group.first, now),
        "last": ago(group.last, now),
    }


def trend_of(group: FailureGroup, span: _StrOrPromise) -> Chart:
    """The curve of a group, with its highest point in words."""
    title = gettext("%(span)s, in %(parts)s parts; most dead jobs in one: %(most)s") % {
        "span": span,
        "most": number_text(max(group.trend), more=group.dead_capped),
        "parts": len(group.trend),
    }
    return sparkline(group.trend, title, "dead")


def place_of(traceback: str) -> str:
    """``crm/jobs.py:41 in push``: the innermost line of the project's own code."""
    frames = FRAME.findall(traceback)
    own = [frame for frame in frames if "site-packages" not in frame[0] and "/lib/" not in frame[0]]
    if not (own or frames):
        return ""
    path, line, name = (own or frames)[-1]
    return f"{'/'.join(PurePath(path).parts[-2:])}:{line} in {name}"


def groups_url(site: AdminSite) -> str:
    """The address of the list of groups."""
    return page_url(site, GROUPS)


def at_url(site: AdminSite, place: str, narrowing: Narrowing = ALL) -> str:
    """The address of the list of all kinds that failed at this line of code."""
    return f"{groups_url(site)}?{urlencode({'q': term('at', place), **narrowing.filters()})}"


def group_url(site: AdminSite, group: FailureGroup, narrowing: Narrowing = ALL) -> str:
    return failure_url(site, group.job_type, group.fingerprint, narrowing)


def failure_url(
    site: AdminSite, job_type: str, fingerprint: str, narrowing: Narrowing = ALL
) -> str:
    """The address of the page of one failure of a job type."""
    key = {"type": job_type, "fingerprint": fingerprint, **narrowing.filters()}
    return f"{page_url(site, GROUP)}?{urlencode(key)}"


def dead_url(site: AdminSite, group: FailureGroup, narrowing: Narrowing) -> str:
    """The address of the dead letters that are counted of a group."""
    key = {"job_type": group.job_type, "fingerprint": group.fingerprint or "none"}
    return list_url(site, DeadLetter, **key, **narrowing.filters(span="finished"))
