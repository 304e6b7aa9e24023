"""The present state of a job in one sentence, with what comes next."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin.sites import AdminSite
from django.db.models import Count, Exists, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...domain.durations import LONGEST_TIMEOUT
from ...models import Job, JobStatus, Quarantine, Queue, Worker
from ...models.job import QUARANTINED
from ...models.worker import ALIVE
from ..base.formatting import ago, duration, link, moment, moment_and_age
from .workflow_step import waits_for


def state_sentence(job: Any, worker: str, site: AdminSite, request: HttpRequest) -> Any:
    """What ``job`` does now and what comes next. ``worker`` is the one that runs it."""
    now = job.read_at
    match JobStatus(job.status):
        case JobStatus.WAITING:
            if job.schedule_id is not None:
                return _("Waits for the previous job of its schedule to end.")
            if job.awaits:
                return _("Waits for the signal %(name)s.") % {"name": job.awaits}
            return _joined(_("Waits for"), waits_for(job, site) or job.blocked_by)
        case JobStatus.SCHEDULED:
            return _scheduled(job)
        case JobStatus.BLOCKED if job.reason == QUARANTINED:
            return _blocked(job, site, request)
        case JobStatus.BLOCKED:
            return _joined(_("Waits:"), job.blocked_by)
        case JobStatus.READY:
            return _joined(_("Waits for a worker; was due"), ago(job.available_at, now))
        case JobStatus.RUNNING:
            return _running(job, worker)
        case JobStatus.SUCCEEDED:
            return _joined(_("Succeeded"), ago(job.finished_at, now), _attempts(job))
        case JobStatus.DEAD:
            ended = _joined(_("Died"), ago(job.finished_at, now), _attempts(job))
            return format_html(_("{}. It runs again only if it is replayed."), ended)
        case JobStatus.CANCELLED:
            ended = _joined(_("Cancelled"), ago(job.finished_at, now))
            return format_html("{}: {}", ended, job.reason) if job.reason else ended


def _scheduled(job: Any) -> Any:
    due = ago(job.available_at, job.read_at)
    is_late = job.available_at <= job.read_at
    if job.failures:
        failed = ngettext(
            "Failed %(failures)s of %(most)s time",
            "Failed %(failures)s of %(most)s times",
            job.max_attempts,
        ) % {"failures": job.failures, "most": job.max_attempts}
        next_run = _("was due {} and starts soon") if is_late else _("runs again {}")
        return format_html("{}; {}.", failed, format_html(next_run, due))
    if is_late:
        return _joined(_("Due"), due, _("and soon made ready by a worker."))
    again = _("Runs again {}.") if job.attempt else _("Runs {}.")
    return format_html(again, due)


def _running(job: Any, worker: str) -> Any:
    # The handler's start is written when it ends. The claim is shortly before the start.
    ran = duration(job.read_at - job.claimed_at)
    ends = ends_by(job)
    if ends is None:
        return format_html(_("Runs for {} on {}, without a time limit."), ran, worker)
    return format_html(_("Runs for {} on {}, ends by {}."), ran, worker, moment(ends))


def ends_by(job: Any) -> datetime | None:
    """When the time limit of a running job is over; None if it has none that could ever be."""
    if job.timeout is None or not 0 < job.timeout <= LONGEST_TIMEOUT:
        return None
    try:
        ends: datetime = job.claimed_at + timedelta(seconds=job.timeout)
    except OverflowError:
        return None
    return ends


def _attempts(job: Any) -> str:
    text = ngettext("after %(count)s attempt", "after %(count)s attempts", job.attempt)
    return text % {"count": f"{job.attempt:,}"} if job.attempt != 1 else _("at its first attempt")


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


def _joined(*parts: str) -> Any:
    return format_html_join(" ", "{}", ((part,) for part in parts))


def hints_of(job: Any) -> list[str]:
    """Reasons why the job does not run."""
    hints = []
    if job.cancel_requested_at and not job.is_final:
        hints.append(_("Its cancellation was requested."))
    if job.reason and job.reason != QUARANTINED and not job.is_final:  # the sentence has it then
        hints.append(job.reason)
    if job.status != JobStatus.READY:
        return hints
    queue = queue_of(job)
    if queue is None:
        hints.append(_("The queue %(name)s no longer exists.") % {"name": job.queue})
    elif queue.paused:
        hints.append(_("Queue %(name)s is paused.") % {"name": job.queue})
    if queue is not None and queue.type_is_quarantined:
        return [*hints, _("Its job type is quarantined; a worker blocks it within seconds.")]
    reason = _unclaimed(job, Worker.objects.using(job._state.db).filter(status__in=ALIVE))
    return [*hints, reason] if reason else hints


def queue_of(job: Any) -> Any:
    """The queue of ``job``, read once; None if it has no row."""
    if not hasattr(job, "queue_row"):
        quarantined = Quarantine.objects.filter(job_type=job.job_type, lifted_at=None)
        queues = Queue.objects.using(job._state.db).filter(name=job.queue)
        job.queue_row = queues.annotate(type_is_quarantined=Exists(quarantined)).first()
    return job.queue_row


def _unclaimed(job: Job, alive: QuerySet[Worker]) -> str:
    """Why no live worker claims a ready job; empty if one does."""
    serving = Q(queues__contains=[job.queue])
    knowing = serving & Q(job_types__contains=[job.job_type])
    counts = alive.aggregate(
        alive=Count("pk"),
        serving=Count("pk", filter=serving),
        knowing=Count("pk", filter=knowing),
    )
    if not counts["alive"]:
        return _("No worker is alive.")
    if not counts["serving"]:
        return _("No live worker serves this queue.")
    if not counts["knowing"]:
        return _("No live worker of this queue knows this job type.")
    if any(_reads(worker, job) for worker in alive.filter(knowing).only("payload_versions")):
        return ""
    text = _("No live worker of this queue reads version %(version)s of its payload.")
    return text % {"version": job.payload_version}


def _reads(worker: Worker, job: Job) -> bool:
    """Whether a worker with the job's type reads payloads of its version. Workers of an older
    release do not report versions, and read any."""
    versions = worker.payload_versions
    return versions is None or job.payload_version <= versions.get(job.job_type, 1)


def fails(job: Any) -> bool:
    """Whether a failure is why one looks at ``job``: it is dead, or failed and is tried again."""
    return job.status == JobStatus.DEAD or (not job.is_final and bool(job.last_error))
