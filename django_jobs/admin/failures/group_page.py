"""The page of one failure: how often, since when, in which code, and what can be done about it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.contrib.admin.sites import AdminSite
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import registry
from ...conf import conf
from ...domain.errors import cut
from ...domain.search_terms import FINGERPRINT
from ...metrics.failures import (
    CodeVersion,
    FailureGroup,
    NewestFailure,
    code_versions,
    newest_failure,
    take_failure,
)
from ...models import BulkOperation, Job, Run
from ...separators import number_text
from ..access.errors import class_alone, hidden_error, may_see_errors, without_secrets
from ..base.actions import ModelAdmin
from ..base.formatting import Visible, ago, list_url, moment_and_age, page_url
from ..layout.console_page import console_page
from ..layout.tables import Column, Table
from .filters import NO_ERROR
from .group_rows import (
    Narrowing,
    at_url,
    dead_url,
    failure_url,
    group_url,
    groups_url,
    place_of,
    shown,
    trend_of,
)
from .groups_page import MEDIA

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

LONGEST_TITLE = 120
LONGEST_BODY = 3_000
"""Characters before they are quoted. Sites refuse addresses of more than about 8,000."""


def issue_url(title: str, lines: list[str]) -> str:
    """The address with title and body, secrets masked; empty without the setting."""
    template = conf().issue_url
    if not template:
        return ""
    values = {
        "{title}": cut(without_secrets(title), LONGEST_TITLE),
        "{body}": cut(without_secrets("\n".join(lines)), LONGEST_BODY),
    }
    for name, value in values.items():
        template = template.replace(name, quote(value, safe=""))
    return template


LONGEST_TRACEBACK = 2_000
"""Characters of its end in an issue."""


def group_view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The failure that ``type`` and ``fingerprint`` name."""
    job_type, fingerprint = (
        request.GET.get(name, "").replace("\0", "") for name in ("type", "fingerprint")
    )
    chosen, site = Narrowing.of(request), page.admin_site
    failures = take_failure(job_type, fingerprint, queue=chosen.queue or None, span=chosen.length)
    if chosen.span and not any(group.dead for group in failures.groups):
        wider = replace(chosen, span="")
        return HttpResponseRedirect(failure_url(site, job_type, fingerprint, wider))
    if chosen.queue and not failures.groups:
        return HttpResponseRedirect(failure_url(site, job_type, fingerprint))
    if not failures.groups:
        return _gone(page, request, job_type, fingerprint)
    (group,) = shown(failures.groups, request.user)
    now = failures.read_at
    since = None if chosen.length is None else now - chosen.length
    newest = newest_failure(group.job_type, group.fingerprint, group.queues)
    if newest:
        newest = _visible(newest, request)
    versions = code_versions(group.job_type, group.fingerprint, group.queues, since)
    place = place_of(newest.traceback or "") if newest else ""
    allowed, visible = page.get_actions(request), Visible(site, request)
    plan_url = _plan_url(site, group, chosen.queue, since) if "replay_jobs" in allowed else ""
    return console_page(
        page,
        request,
        "failures/group.html",
        title=group.error or _("No error"),
        media=MEDIA,
        parents=[(_("Failures"), groups_url(site))],
        group=group,
        sentence=_sentence(group),
        facts=[*_narrowed(group, site, chosen), *_facts(group, site, now)],
        curve=chosen.curve,
        trend=trend_of(group, chosen.curve),
        versions=_versions(group, versions, now),
        newest=newest,
        newest_job=newest and visible.job(newest.job),
        newest_run=newest and newest.run and visible.link(Run, newest.run, _("its run")),
        place=place,
        place_url=at_url(site, place),
        dead_url=dead_url(site, group, chosen),
        **{name: name in allowed and group.dead > 0 for name in ("replay_jobs", "dismiss_jobs")},
        plan_url=plan_url,
        replay_label=_("Replay all at once…") if plan_url else _("Replay…"),
        quarantine_url=_quarantine_url(request, site, group),
        issue_url=issue_url(
            f"{group.job_type}: {group.error or group.fingerprint}",
            _issue(group, newest, versions, request.build_absolute_uri(group_url(site, group))),
        ),
    )


def _versions(group: FailureGroup, versions: list[CodeVersion], now: datetime) -> Table:
    rows = [
        (one.version, number_text(one.jobs), ago(one.first, now), ago(one.last, now))
        for one in versions
    ]
    columns = (
        *(Column(_("Version")), Column(_("Dead"), number=True)),
        *(Column(_("First"), number=True), Column(_("Last"), number=True)),
    )
    note = _("Of the 200 that died last.") if group.dead > 200 else ""
    about = _("Versions of the code in which the newest of these jobs died")
    return Table(_("Versions of the code"), columns, rows, note=note, about=about)


def _gone(page: ModelAdmin, request: HttpRequest, job_type: str, fingerprint: str) -> HttpResponse:
    """The page of a failure that no job has now. A link to it may be older than a replay."""
    if not job_type or (fingerprint and not FINGERPRINT.fullmatch(fingerprint)):
        raise Http404(_("This is not the address of a failure."))
    site = page.admin_site
    links = [
        (_("All failures"), groups_url(site)),
        (_("All jobs of this type"), list_url(site, Job, job_type=job_type)),
    ]
    if fingerprint and request.user.has_perm("django_jobs.view_run"):
        links.append((_("All runs with this error"), list_url(site, Run, q=f"error:{fingerprint}")))
    return console_page(
        page,
        request,
        "failures/gone.html",
        title=_("No job has this failure now"),
        media=MEDIA,
        parents=[(_("Failures"), groups_url(site))],
        subtitle=job_type,
        links=links,
    )


def _visible(newest: NewestFailure, request: HttpRequest) -> NewestFailure:
    if not may_see_errors(request.user):
        return replace(newest, error_message=hidden_error(), traceback=None)
    return replace(
        newest,
        error_message=without_secrets(newest.error_message or ""),
        traceback=without_secrets(newest.traceback or ""),
    )


def _sentence(group: FailureGroup) -> str:
    retried = number_text(group.retried, more=group.retried_capped)
    if not group.dead:
        return ngettext(
            "No job is dead of it; %(retried)s is being retried.",
            "No job is dead of it; %(retried)s are being retried.",
            group.retried,
        ) % {"retried": retried}
    dead = number_text(group.dead, more=group.dead_capped)
    if not group.retried:
        return _("%(dead)s dead.") % {"dead": dead}
    return ngettext(
        "%(dead)s dead; %(retried)s more is being retried.",
        "%(dead)s dead; %(retried)s more are being retried.",
        group.retried,
    ) % {"dead": dead, "retried": retried}


def _narrowed(
    group: FailureGroup, site: AdminSite, chosen: Narrowing
) -> list[tuple[str, SafeString]]:
    """What was chosen of the failure, with a link to all of it."""
    parts = [str(one) for one in (chosen.queue, chosen.span and chosen.curve) if one]
    link = format_html('<a href="{}">{}</a>', group_url(site, group), _("Show all"))
    return [(_("Only"), format_html("{} · {}", ", ".join(parts), link))] if parts else []


def _facts(group: FailureGroup, site: AdminSite, now: Any) -> list[tuple[str, str]]:
    jobs = list_url(site, Job, job_type=group.job_type)
    return [
        (_("Job type"), format_html('<a href="{}">{}</a>', jobs, group.job_type)),
        (_("Queues"), ", ".join(group.queues)),
        (_("First"), moment_and_age(group.first, now)),
        (_("Last"), moment_and_age(group.last, now)),
        (_("Fingerprint"), group.fingerprint or _("none")),
    ]


def _plan_url(site: AdminSite, group: FailureGroup, queue: str, since: datetime | None) -> str:
    """The address of a plan that tries one of several jobs first."""
    if group.dead < 2 or not site.is_registered(BulkOperation):
        return ""
    plan = page_url(site, "django_jobs_replay_plan")
    terms = {"type": group.job_type, "error": group.fingerprint or NO_ERROR, "queue": queue}
    if since is not None:
        terms["finished_since"] = since.isoformat()
    return f"{plan}?{urlencode({name: one for name, one in terms.items() if one})}"


def _quarantine_url(request: HttpRequest, site: AdminSite, group: FailureGroup) -> str:
    may = request.user.has_perm("django_jobs.quarantine_job_type")
    if not may or group.job_type not in registry.names():
        return ""
    add = page_url(site, "django_jobs_quarantine_add")
    # Users who may not see error messages can see the reason of a quarantine.
    reason = " ".join(filter(None, [class_alone(group.error)[:200], group.fingerprint]))
    return f"{add}?{urlencode({'job_type': group.job_type, 'reason': reason})}"


def _issue(
    group: FailureGroup, newest: NewestFailure | None, versions: list[CodeVersion], address: str
) -> list[str]:
    lines = [
        f"Job type: {group.job_type}",
        f"Error: {group.error}",
        f"Fingerprint: {group.fingerprint}",
        f"Queues: {', '.join(group.queues)}",
        f"Dead jobs: {number_text(group.dead, more=group.dead_capped)}",
    ]
    if group.first and group.last:
        lines.append(f"From {group.first:%Y-%m-%d %H:%M} to {group.last:%Y-%m-%d %H:%M} UTC")
    if versions:
        lines.append(f"Code: {', '.join(one.version for one in versions)}")
    lines.append(f"Page: {address}")
    if newest and newest.traceback:
        lines += ["", "```", newest.traceback[-LONGEST_TRACEBACK:].strip(), "```"]
    return lines
