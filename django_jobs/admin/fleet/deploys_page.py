"""The page of a deploy: the versions that run now, the commands of each, and what they wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...domain.search_terms import term
from ...metrics.failures import MOST_ATTEMPTS, attempts_by_version, began_by_version
from ...metrics.forecast import Forecast, take_forecast
from ...models import DeadLetter, Worker
from ...models.worker import NOT_ENDED, in_hand_text
from ...separators import number_text
from ..base.actions import ModelAdmin
from ..base.formatting import NOTHING, Visible, ago, badge, duration, link, list_url
from ..base.model_admin import REFRESH_SECONDS
from ..failures.group_rows import groups_url
from ..layout.console_page import console_page
from ..layout.tables import Column, Table, action_form, unseen

MOST = 500
"""Worker processes that the page looks at."""
DRAINS = 10
"""Those that it names which drained and ended."""


def deploys_view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The versions, the commands and the forecast."""
    alive = page.get_queryset(request).filter(status__in=NOT_ENDED)
    workers = list(alive.order_by("host", "supervisor_pid", "started_at", "pk")[: MOST + 1])
    shown = workers[:MOST]
    sees_failures = Visible(page.admin_site, request).sees(DeadLetter)
    began = began_by_version() if sees_failures else None
    return console_page(
        page,
        request,
        "worker/deploys.html",
        title=_("Deploys"),
        refresh_seconds=REFRESH_SECONDS,
        sentence=_sentence(shown, take_forecast({})),
        more=len(workers) > MOST,
        versions=shown,
        tables=[
            _versions(page, shown, began),
            _commands(page, request, shown),
            _drains(page, page.get_queryset(request)),
        ],
    )


def _sentence(workers: Sequence[Any], forecast: Forecast) -> str:
    alive = [worker for worker in workers if worker.lease_expires_at >= worker.read_at]
    if not alive:
        return _("No worker is alive.")
    text = _of_versions([worker.code_version for worker in alive])
    if not forecast.running:
        return f"{text} {_('Nothing runs: a drain would end at once.')}"
    if forecast.deploy_seconds < 1:
        text += " " + _("Draining all workers would take less than a second.")
    else:
        time = duration(timedelta(seconds=forecast.deploy_seconds))
        text += " " + _("Draining all workers would take about %(time)s.") % {"time": time}
    if forecast.unknown:
        text += " " + ngettext(
            "%(count)s running job may take longer: how long its type takes is not known.",
            "%(count)s running jobs may take longer: how long their types take is not known.",
            forecast.unknown,
        ) % {"count": number_text(forecast.unknown)}
    return text


def _of_versions(names: Sequence[str]) -> str:
    """How many versions run. A worker without the setting has an empty name."""
    versions, unnamed = len({*names} - {""}), names.count("")
    advice = _("The setting CODE_VERSION names it: a release, or a commit.")
    if not versions:
        return _("The version of the code is not known.") + " " + advice
    if unnamed:
        text = ngettext(
            "Workers run %(count)s known version of the code, and %(unnamed)s of %(all)s processes "
            "do not name theirs.",
            "Workers run %(count)s known versions of the code, and %(unnamed)s of %(all)s "
            "processes do not name theirs.",
            versions,
        )
        numbers = {"count": versions, "unnamed": unnamed, "all": len(names)}
        return text % numbers + " " + advice
    return ngettext(
        "All workers run one version of the code.",
        "Workers run %(count)s versions of the code.",
        versions,
    ) % {"count": versions}


def _grouped(workers: Iterable[Any], key: Any) -> list[tuple[Any, list[Any]]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for worker in workers:
        groups[key(worker)].append(worker)
    return list(groups.items())


def _code(worker: Any) -> str:
    return worker.code_version or _("not known")


def _key_of(worker: Any) -> tuple[str, int]:
    """A worker of an older release is a command alone."""
    return worker.host, worker.supervisor_pid or -worker.pk


def _versions(page: ModelAdmin, workers: Sequence[Any], began: dict[str, int] | None) -> Table:
    """Those that run now, and those of which an attempt ended in the last hour."""
    wide = _("Draining"), _("Running / threads"), _("Prefetched"), _("Last started")
    columns = (
        *(Column(_("Version")), Column(_("Failures"))),
        *(Column(label, number=True) for label in (_("Failed / attempts"), _("Processes"))),
        *(Column(label, number=True, wide=True) for label in wide),
    )
    running = dict(_grouped(workers, lambda worker: worker.code_version))
    attempts = attempts_by_version()
    rows = [
        (
            *(version or _("not known"), _failures(page, version, began)),
            " / ".join(map(number_text, attempts.get(version, (0, 0)))),
            *_processes(running.get(version, [])),
        )
        for version in {**running, **attempts}
    ]
    lead = _("Attempts are those of the last hour, at most the newest %(most)s of all versions.")
    about = _("The versions that workers run now or ran in the last hour")
    lead %= {"most": number_text(MOST_ATTEMPTS)}
    return Table(_("Versions of the code"), columns, rows, lead=lead, about=about)


def _processes(workers: list[Any]) -> tuple[str, ...]:
    if not workers:
        return "0", *[NOTHING] * 4
    newest = max(workers, key=lambda worker: worker.started_at)
    return (
        *(number_text(len(workers)), number_text(sum(map(_is_draining, workers)))),
        *(*_in_hand(workers), ago(newest.started_at, newest.read_at)),
    )


def _failures(page: ModelAdmin, code: str, began: dict[str, int] | None) -> str:
    """How many kinds of failures are new in a version, with a link to them."""
    if began is None or not code:
        return NOTHING
    kinds = began.get(code, 0)
    text = ngettext("%(count)s new kind", "%(count)s new kinds", kinds)
    text %= {"count": number_text(kinds)}
    address = f"{groups_url(page.admin_site)}?{urlencode({'q': term('since', code)})}"
    return format_html('<a href="{}">{}</a>', address, text) if kinds else text


def _commands(page: Any, request: HttpRequest, workers: Sequence[Any]) -> Table:
    """Each run of ``jobworker``: a supervisor and its worker processes."""
    lead = _(
        "A command is a jobworker with all of its worker processes. Prefetched jobs are claimed "
        "and wait for a thread."
    )
    labels = _("Processes"), _("Running / threads"), _("Prefetched"), _("Memory"), _("Heartbeat")
    columns = [
        *(Column(_("Command")), Column(_("State"))),
        *(Column(label, number=True, wide=True) for label in labels),
    ]
    commands = [of for _key, of in _grouped(workers, _key_of)]
    rows = [_command(page, of) for of in commands]
    if page.has_stop_permission(request):
        lead += " " + _(
            "To drain a command is to drain all of its processes; then it ends. The page of a "
            "worker drains one process."
        )
        columns.append(Column(unseen(_("Drain"))))
        url, label = list_url(page.admin_site, Worker), _("Drain the command…")
        for row, of in zip(rows, commands, strict=True):
            drains = all(map(_is_draining, of))
            form = action_form(request, url, "stop_commands", label, of[0].pk)
            row.append("" if drains else form)
    about, css = _("Each jobworker with its processes"), "jobs-timeline jobs-commands"
    return Table(_("Commands"), columns, rows, lead=lead, about=about, css=css)


def _command(page: ModelAdmin, workers: list[Any]) -> list[str]:
    first = workers[0]
    draining = sum(map(_is_draining, workers))
    if any(worker.lease_expires_at < worker.read_at for worker in workers):
        state = badge("expired", _("lease expired"))
    elif draining:
        state = badge(
            "draining",
            _("%(draining)s of %(all)s drain") % {"draining": draining, "all": len(workers)},
        )
    else:
        state = badge("running", _("running"))
    memory = [worker.rss_mb for worker in workers if worker.rss_mb]
    versions = ", ".join(sorted({_code(worker) for worker in workers}))
    unnamed = first.name == first.host
    name = link(page.admin_site, Worker, first.pk, _place(first) if unnamed else first.name)
    details = versions if unnamed else f"{_place(first)} · {versions}"
    return [
        format_html('{} <span class="jobs-quiet">{}</span>', name, details),
        *(state, number_text(len(workers)), *_in_hand(workers)),
        f"{number_text(sum(memory))} MB" if memory else NOTHING,
        ago(min(worker.heartbeat_at for worker in workers), first.read_at),
    ]


def _drains(page: ModelAdmin, workers: QuerySet[Any]) -> Table:
    """The worker processes that drained and ended, the last first."""
    began = Coalesce("drain_requested_at", "draining_at")
    ended = workers.filter(stopped_at__isnull=False).annotate(began=began)
    rows = [
        (
            *(link(page.admin_site, Worker, worker.pk, worker.place), _code(worker)),
            *(ago(worker.stopped_at, worker.read_at), duration(worker.stopped_at - worker.began)),
            worker.stop_reason or NOTHING,
        )
        for worker in ended.filter(began__isnull=False).order_by("-stopped_at")[:DRAINS]
    ]
    columns = (
        *(Column(_("Process")), Column(_("Version")), Column(_("Ended"), number=True)),
        *(Column(_("Drained for"), number=True), Column(_("Reason"))),
    )
    about = _("The worker processes that last drained and ended")
    return Table(_("Last drains"), columns, rows, about=about)


def _is_draining(worker: Any) -> bool:
    return worker.status == "draining" or worker.drain_requested_at is not None


def _place(worker: Any) -> str:
    """The process of a command: ``web-1:4711``."""
    return f"{worker.host}:{worker.supervisor_pid or worker.pid}"


def _in_hand(workers: list[Any]) -> tuple[str, str]:
    """The jobs that run, with the slots, and those that wait for one."""
    return in_hand_text(*((one.claimed, one.threads, one.async_slots) for one in workers))
