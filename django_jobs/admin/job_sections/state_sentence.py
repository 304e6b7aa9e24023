"""The present state of a job in one sentence, with what comes next."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...domain.durations import LONGEST_TIMEOUT
from ...models import JobStatus, Queue
from ...models.job import QUARANTINED
from ...separators import number_text
from ..base.formatting import ago, duration, moment_in_zone, refusal_text
from .why import WhySection


def state_sentence(job: Any, worker: str, why: WhySection, refused: str | None = None) -> Any:
    """What ``job`` does now and what comes next. ``worker`` is the one that runs it, ``refused``
    why it cannot be replayed."""
    now = job.read_at
    match JobStatus(job.status):
        case JobStatus.RUNNING:
            return _running(job, worker)
        case JobStatus.SUCCEEDED:
            return _joined(_("Succeeded"), ago(job.finished_at, now), _attempts(job))
        case JobStatus.DEAD:
            ended = _joined(_("Died"), ago(job.finished_at, now), _attempts(job))
            if refused:
                return format_html("{}.", ended)
            return format_html(_("{}. It runs again only if it is replayed."), ended)
        case JobStatus.CANCELLED:
            ended = _joined(_("Cancelled"), ago(job.finished_at, now))
            return format_html("{}: {}", ended, job.reason) if job.reason else ended
    return why.sentence


def _running(job: Any, worker: str) -> Any:
    # The handler's start is written when it ends. The claim is shortly before the start.
    ran = duration(job.read_at - job.claimed_at)
    ends = ends_by(job)
    if ends is None:
        return format_html(_("Runs for {} on {}, without a time limit."), ran, worker)
    return format_html(_("Runs for {} on {}, ends by {}."), ran, worker, moment_in_zone(ends))


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
    return (
        text % {"count": number_text(job.attempt)}
        if job.attempt != 1
        else _("at its first attempt")
    )


def _joined(*parts: str) -> Any:
    return format_html_join(" ", "{}", ((part,) for part in parts))


def hints_of(job: Any, why: WhySection, refused: str | None) -> list[str]:
    """What else is to know about a job that has not ended, or is a dead step that is ``refused``
    by its workflow run."""
    hints = [why.trouble] if why.trouble else []
    if refused and job.status == JobStatus.DEAD:
        text = _("It can be neither replayed, edited nor skipped: %(why)s.")
        hints.append(text % {"why": refusal_text(refused)})
    if job.cancel_requested_at and not job.is_final:
        hints.append(_("Its cancellation was requested."))
    if job.reason and job.reason != QUARANTINED and not job.is_final:  # the sentence has it then
        hints.append(job.reason)
    return hints


def queue_of(job: Any) -> Any:
    """The queue of ``job``, read once; None if it has no row."""
    if not hasattr(job, "queue_row"):
        job.queue_row = Queue.objects.using(job._state.db).filter(name=job.queue).first()
    return job.queue_row


def fails(job: Any) -> bool:
    """Whether a failure is why one looks at ``job``: it is dead, or failed and is tried again."""
    return job.status == JobStatus.DEAD or (not job.is_final and bool(job.last_error))
