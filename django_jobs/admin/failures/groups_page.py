"""The page of failures: dead jobs and retried ones, grouped by what went wrong, with its search."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.forms import Media
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.search_terms import near_terms, words
from ...metrics.failures import FailureGroup, take_failures
from ...models import Job, JobStatus, Queue
from ...separators import number_text
from ..access.errors import may_see_errors
from ..base.actions import ModelAdmin
from ..base.model_admin import REFRESH_SECONDS, unlimited
from ..layout.console_page import console_page
from ..layout.tables import Column, Sorting
from ..lists.choices import with_meant
from ..lists.filters import MOST_CHOICES
from .group_rows import SPANS, Code, Narrowing, code_of, groups_url, rows, shown


@dataclass(slots=True)
class GroupSearch:
    """What the text in the box asks for, by its kind: parts of the job type, of the error or (the
    empty kind) of either, the version of the code since which it fails, and parts of the line of
    code where it does."""

    parts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unknown: list[str] = field(default_factory=list)
    """The terms that are not understood. Nothing matches them."""

    @classmethod
    def of(cls, text: str, kinds: Collection[str]) -> GroupSearch:
        search = cls()
        for word in words(text):
            part = word.value if word.kind in OF_CODE else word.value.casefold().rstrip("*")
            if word.kind in kinds and part and not word.text.startswith(":"):
                search.parts[word.kind].append(part)
            else:
                search.unknown.append(word.text)
        return search

    @property
    def is_of_code(self) -> bool:
        return any(self.parts[kind] for kind in OF_CODE)

    def matches(self, groups: Iterable[FailureGroup]) -> list[FailureGroup]:
        return [] if self.unknown else [group for group in groups if self._matches(group)]

    def _matches(self, group: FailureGroup) -> bool:
        job_type = group.job_type.casefold()
        error = f"{group.error} {group.fingerprint}".casefold()
        return (
            all(part in job_type for part in self.parts["type"])
            and all(part in error for part in self.parts["error"])
            and all(part in f"{job_type} {error}" for part in self.parts[""])
        )


OF_CODE = "since", "at"
KINDS = {"", "type", "error", *OF_CODE}


def _none_found(text: str, groups: Iterable[FailureGroup], code: Iterable[Code]) -> str:
    """What to say of a search that finds nothing, with a term that may be meant."""
    names = [(one.job_type, one.error.partition(":")[0]) for one in groups]
    known: dict[str, set[str]] = {
        "type": {part for one, _error in names for part in (one, *one.split("."))},
        "error": {part for _type, one in names for part in (one, *one.split("."))},
        "since": {one.version for one in code},
        "at": {part for one in code for part in (one.place, *re.split(r"[ /]", one.place))},
    }
    known[""] = known["type"] | known["error"]
    return with_meant(gettext("No failure matches the search."), near_terms(text, known))


MEDIA = Media(css={"all": ("django_jobs/failures.css",)})
PER_PAGE = 50
MOST_RETRIED = 10_000
ANY_TIME = _("At any time")


EXPORTED = (
    *("job_type", "error", "fingerprint", "queues", "dead", "dead_capped", "retried"),
    *("retried_capped", "first", "last"),
)
KEYS: dict[str, Any] = {
    "dead": attrgetter("dead"),
    "retried": attrgetter("retried"),
    "what": lambda group: (group.error, group.job_type),
    "first": attrgetter("first"),
    "last": attrgetter("last"),
}
may_export = unlimited("export_job")


def groups_view(page: ModelAdmin, request: HttpRequest) -> HttpResponseBase:
    """The groups, the largest first unless another column sorts them."""
    chosen = Narrowing.of(request)
    queue = chosen.queue or None
    retried = request.GET.get("retried") == "1"
    text = request.GET.get("q", "").replace("\0", "")
    failures = take_failures(queue=queue, span=chosen.length, retried=retried)
    with_places = may_see_errors(request.user)
    search = GroupSearch.of(text, KINDS if with_places else KINDS - {"at"})
    found, code = search.matches(shown(failures.groups, request.user)), {}
    if search.is_of_code:
        code = code_of(found, with_places)
        found = [one for one in found if code[one].is_of(search.parts["since"], search.parts["at"])]
    if "export" in request.POST:
        return _export(page, request, found, is_cut=failures.more)
    sorting = Sorting(request, KEYS, "-dead")
    found = sorting.rows(found)
    columns = {
        "dead": Column(gettext("Dead"), number=True),
        **({"retried": Column(gettext("Retried"), number=True)} if retried else {}),
        "what": Column(gettext("What fails")),
        "curve": Column(chosen.curve, wide=True),
        "first": Column(gettext("First"), number=True, wide=True),
        "last": Column(gettext("Last"), number=True),
    }
    pages = Paginator(found, PER_PAGE).get_page(request.GET.get("p"))
    names = list(Queue.objects.names()[:MOST_CHOICES])
    return console_page(
        page,
        request,
        "failures/groups.html",
        title=gettext("Failures"),
        media=MEDIA,
        parents=[],
        refresh_seconds=REFRESH_SECONDS,
        sentence=_sentence(
            found or list(failures.groups),
            failures.more,
            bool(chosen.span),
            0 if text else _retried(queue),
        ),
        failures=failures,
        found=len(found),
        not_understood=" ".join(search.unknown),
        none_found="" if found else _none_found(text, failures.groups, code.values()),
        rows=rows(
            pages,
            code or code_of(list(pages), with_places),
            page.admin_site,
            failures.read_at,
            chosen,
        ),
        pages=pages,
        headings=sorting.headings(columns),
        **{"q": text, "queue": chosen.queue, "span": chosen.span, "retried": retried},
        queues=names if queue is None or queue in names else [queue, *names],
        spans=[("", ANY_TIME), *((key, label) for key, (_length, label) in SPANS.items())],
        address=groups_url(page.admin_site),
        query=_query(request),
        may_export=may_export(page, request),
        may_replay=page.has_replay_permission(request),  # type: ignore[attr-defined]
    )


def _export(
    page: ModelAdmin, request: HttpRequest, groups: list[FailureGroup], *, is_cut: bool
) -> HttpResponseBase:
    from ..access.export import export, plain

    if not may_export(page, request):
        raise PermissionDenied
    rows = ({name: plain(getattr(group, name)) for name in EXPORTED} for group in groups)
    return export(page, request, "failures", EXPORTED, [rows], len(groups), is_cut=is_cut)


def _retried(queue: str | None) -> int:
    jobs = Job.objects.using(conf().database)
    waiting = jobs.filter(status=JobStatus.SCHEDULED, failures__gt=0)
    if queue is not None:
        waiting = waiting.filter(queue=queue)
    return waiting.order_by().values("pk")[: MOST_RETRIED + 1].count()


def _sentence(found: list[FailureGroup], more: bool, in_span: bool, retried: int) -> str:
    """How many jobs are dead of what was searched for."""
    groups = [group for group in found if group.dead]
    dead = sum(group.dead for group in groups)
    capped = more or any(group.dead_capped for group in groups)
    if dead:
        jobs = ngettext("%(number)s dead job", "%(number)s dead jobs", dead) % {
            "number": number_text(dead, more=capped)
        }
        text = ngettext("%(jobs)s of one kind", "%(jobs)s of %(kinds)s kinds", len(groups)) % {
            "jobs": jobs,
            "kinds": number_text(len(groups), more=more),
        }
    else:
        text = gettext("No job died in this time") if in_span else gettext("No job is dead")
    again = ngettext(
        "%(number)s more is being retried", "%(number)s more are being retried", retried
    ) % {"number": number_text(min(retried, MOST_RETRIED), more=retried > MOST_RETRIED)}
    return f"{text} · {again}" if retried else text


def _query(request: HttpRequest) -> str:
    """The address of this list without its page number."""
    query = request.GET.copy()
    query.pop("p", None)
    return query.urlencode()
