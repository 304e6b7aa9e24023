"""The runs of a job in order, and its present state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.admin.sites import AdminSite
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from ...models import Job, JobStatus, Quarantine, Queue, Run, Worker
from ...models.job import QUARANTINED
from ...models.worker import ALIVE
from ..base.formatting import (
    ago,
    badge,
    change_url,
    duration,
    link,
    moment,
    moment_and_age,
    usage,
    worker_link,
)
from ..base.json_display import object_of
from .workflow_step import waits_for

MOST_RUNS = 100
MOST_TRACEBACKS = 10
"""Older runs are shown without one: a traceback may be 64 KB. The run's own page shows it."""
FIRST_LINE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A run, ready for display. ``replay`` describes a replay that preceded it."""

    run: Run
    replay: str
    badge: str
    worker: str
    due: str
    claimed: str
    started: str
    finished: str
    waited: str
    ran: str
    used: str
    headline: str
    message: str
    traceback: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The latest runs, oldest first, and the present state."""

    steps: list[Step]
    replay: str
    badge: str
    present: str
    hints: list[str]
    cut: bool
    most: int = MOST_RUNS


def timeline(job: Any, site: AdminSite, headers: str | None, request: HttpRequest) -> Timeline:
    """The timeline of ``job`` for the user of ``request``. ``headers`` is JSON text and lists the
    replays."""
    alias = job._state.db
    latest = (
        Run.objects.using(alias)
        .filter(job_id=job.pk)
        .order_by("-attempt")
        .defer("traceback", "log")
    )
    runs = list(latest[: MOST_RUNS + 1])
    cut, runs = len(runs) > MOST_RUNS, runs[:MOST_RUNS][::-1]
    newest = [run.pk for run in runs[-MOST_TRACEBACKS:]]
    tracebacks = dict(Run.objects.using(alias).filter(pk__in=newest).values_list("pk", "traceback"))
    numbers = {run.worker_id for run in runs} | {job.worker_id}
    workers = Worker.objects.using(alias).in_bulk([pk for pk in numbers if pk is not None])
    replays = _replays(headers)
    steps, previous = [], -1
    for run in runs:
        before = [text for after, text in replays if previous <= after < run.attempt]
        text = tracebacks.get(run.pk, "")
        steps.append(_step(run, before, worker_link(site, run.worker_id, workers), text, site))
        previous = run.attempt
    after = [text for attempt, text in replays if attempt >= previous]
    return Timeline(
        steps=steps,
        replay="; ".join(after),
        badge=badge(job.status, job.get_status_display()),
        present=_present(job, worker_link(site, job.worker_id, workers), site, request),
        hints=_hints(job, alias),
        cut=cut,
    )


def _step(run: Run, replays: list[str], worker: str, traceback: str, site: AdminSite) -> Step:
    line = run.error_message.strip().split("\n", 1)[0]
    whole = line == run.error_message.strip() and len(line) <= FIRST_LINE
    return Step(
        run=run,
        replay="; ".join(replays),
        badge=badge(run.outcome, run.get_outcome_display()),
        worker=worker,
        due=moment(run.available_at),
        claimed=moment(run.claimed_at),
        started=moment(run.started_at),
        finished=moment(run.finished_at),
        waited=duration(run.claimed_at - run.available_at),
        ran=duration(run.duration),
        used=usage(run),
        headline=line if len(line) <= FIRST_LINE else line[:FIRST_LINE] + "…",
        message="" if whole else run.error_message,
        traceback=traceback,
        url=change_url(site, Run, run.pk),
    )


def _present(job: Any, worker: str, site: AdminSite, request: HttpRequest) -> Any:
    now = job.read_at
    match JobStatus(job.status):
        case JobStatus.WAITING:
            if job.schedule_id is not None:
                return _("Waits for the previous job of its schedule to end.")
            if job.awaits:
                return _("Waits for the signal %(name)s.") % {"name": job.awaits}
            return _sentence(_("Waits for"), waits_for(job, site) or job.blocked_by)
        case JobStatus.SCHEDULED:
            due = ago(job.available_at, now)
            if job.available_at <= now:
                return _sentence(_("Due"), due, _("and soon made ready by a worker."))
            return _sentence(_("Next attempt"), due)
        case JobStatus.BLOCKED if job.reason == QUARANTINED:
            return _blocked(job, site, request)
        case JobStatus.BLOCKED:
            return _sentence(_("Waits:"), job.blocked_by)
        case JobStatus.READY:
            return _sentence(_("Waits for a worker; was due"), ago(job.available_at, now))
        case JobStatus.RUNNING:
            # The handler's start is written when it ends. The claim is shortly before the start.
            attempt = _("Attempt %(attempt)s on") % {"attempt": job.attempt}
            return _sentence(attempt, worker, _("claimed"), ago(job.claimed_at, now))
        case JobStatus.SUCCEEDED | JobStatus.DEAD | JobStatus.CANCELLED:
            return _sentence(_("Ended"), ago(job.finished_at, now))


def _blocked(job: Any, site: AdminSite, request: HttpRequest) -> Any:
    """Who quarantined the job's type, when and why, with a link if the user may follow it."""
    row = Quarantine.objects.using(job._state.db).filter(job_type=job.job_type).first()
    if row is None or not row.in_force:
        return _("Blocked; its quarantine was lifted, and a worker makes it ready within seconds.")
    quarantined = _("quarantined")
    registered = site.is_registered(Quarantine)  # a project's own site may leave it out
    if registered and site.get_model_admin(Quarantine).has_view_permission(request, row):
        quarantined = link(site, Quarantine, row.pk, quarantined)
    text = format_html(
        _("Blocked: its job type is {} since {} by {}"),
        quarantined,
        moment_and_age(row.since, job.read_at),
        row.by or _("a worker"),
    )
    return format_html("{}: {}", text, row.reason) if row.reason else text


def _sentence(*parts: str) -> Any:
    return format_html_join(" ", "{}", ((part,) for part in parts))


def _hints(job: Job, alias: str) -> list[str]:
    """Reasons why the job does not run."""
    hints = []
    if job.cancel_requested_at and not job.is_final:
        hints.append(_("Its cancellation was requested."))
    if job.reason and job.reason != QUARANTINED:  # the present state shows more of it
        hints.append(job.reason)
    if job.status != JobStatus.READY:
        return hints
    queue = Queue.objects.using(alias).filter(name=job.queue).first()
    if queue is None:
        hints.append(_("The queue %(name)s no longer exists.") % {"name": job.queue})
    elif queue.paused:
        hints.append(_("Queue %(name)s is paused.") % {"name": job.queue})
    quarantines = Quarantine.objects.using(alias).filter(job_type=job.job_type, lifted_at=None)
    if quarantines.exists():
        return [*hints, _("Its job type is quarantined; a worker blocks it within seconds.")]
    reason = _unclaimed(job, Worker.objects.using(alias).filter(status__in=ALIVE))
    return [*hints, reason] if reason else hints


def _unclaimed(job: Job, alive: QuerySet[Worker]) -> str:
    """Why no live worker claims a ready job; empty if one does."""
    if not alive.exists():
        return _("No worker is alive.")
    serving = alive.filter(queues__contains=[job.queue])
    if not serving.exists():
        return _("No live worker serves this queue.")
    knowing = serving.filter(job_types__contains=[job.job_type])
    if not knowing.exists():
        return _("No live worker of this queue knows this job type.")
    if any(_reads(worker, job) for worker in knowing.only("payload_versions")):
        return ""
    text = _("No live worker of this queue reads version %(version)s of its payload.")
    return text % {"version": job.payload_version}


def _reads(worker: Worker, job: Job) -> bool:
    """Whether a worker with the job's type reads payloads of its version. Workers of an older
    release do not report versions, and read any."""
    versions = worker.payload_versions
    return versions is None or job.payload_version <= versions.get(job.job_type, 1)


def _replays(headers: str | None) -> list[tuple[int, str]]:
    entries = object_of(headers).get("replays")
    replays = []
    for entry in entries if isinstance(entries, list) else ():
        attempt = entry.get("after_attempt") if isinstance(entry, dict) else None
        if isinstance(attempt, int):
            replays.append((attempt, _replay_text(entry)))
    return replays[-MOST_RUNS:]


def _replay_text(entry: dict[str, Any]) -> str:
    text = _("Replayed by %(who)s") % {"who": entry.get("by") or _("code or command line")}
    try:
        at = parse_datetime(str(entry.get("at")))
    except ValueError:
        at = None
    if at is not None and at.tzinfo is not None:
        text += f", {at:%Y-%m-%d %H:%M:%S %Z}"
    why = entry.get("why")
    return f"{text}: {why}" if why else text
