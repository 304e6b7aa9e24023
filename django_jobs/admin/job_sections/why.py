"""The state of a job in a sentence, and why it is not running, as sections of its page. They name
only rows that the user may view, and to a user with a scope no other job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...domain.numbers import LONGEST_TIMEOUT
from ...lifecycle.scope import scope_of
from ...models import Job, JobStatus, Queue
from ...models.job import QUARANTINED
from ...separators import number_text
from ...why.evaluation import explain
from ...why.explanation import Gate, GateState, Ref, Text
from ..base.formatting import Visible, ago, duration, joined, moment_in_zone, refusal_text

ICONS = {GateState.PASSED: "✓", GateState.HOLDS: "✕", GateState.UNKNOWN: "?"}
LABELS = {
    GateState.PASSED: gettext_lazy("passed"),
    GateState.HOLDS: gettext_lazy("holds it"),
    GateState.UNKNOWN: gettext_lazy("not known"),
}
UNNAMED = {"job": gettext_lazy("a job"), "job_type": gettext_lazy("jobs")}
"""What names a job, or its type, to those who may not view all jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhySection:
    """What the template ``job/why.html`` shows: the gates of a job that has not ended. The page
    begins with the ``sentence``. ``trouble`` says what is wrong with a running job."""

    title: str
    sentence: str
    basis: str
    gates: list[dict[str, Any]]
    trouble: str


def why_section(job: Job, visible: Visible) -> WhySection:
    """The section for a user. At most two statements; none for an ended job."""
    if job.is_final:
        return WhySection(title="", sentence="", basis="", gates=[], trouble="")
    linked = Linked(visible)
    explanation = explain(job, names_jobs=linked.names_jobs)
    is_running = job.status == JobStatus.RUNNING
    expected = explanation.expected
    holding = (gate.sentence for gate in explanation.gates if is_running and gate.holds)
    trouble = next(holding, ())
    return WhySection(
        title=_("Now") if is_running else _("Why is it not running?"),
        sentence=linked.text(explanation.sentence),
        basis=expected.basis if expected is not None and expected.seconds else "",
        gates=[_row(gate, linked) for gate in explanation.gates],
        trouble=linked.text(trouble),
    )


def _row(gate: Gate, linked: Linked) -> dict[str, Any]:
    return {
        "state": gate.state.value,
        "icon": ICONS[gate.state],
        "label": str(LABELS[gate.state]),
        "title": gate.title,
        "text": linked.text(gate.text),
        "details": [linked.text(line) for line in gate.details],
    }


class Linked:
    """Makes links of the rows that a text names."""

    def __init__(self, visible: Visible) -> None:
        self._visible = visible
        # The permission to view jobs does not say of which queue or job type each of them is.
        self.names_jobs = scope_of(visible.request.user) is None

    def text(self, text: Text) -> str:
        return joined("", map(self._part, text))

    def _part(self, part: str | Ref) -> str:
        if isinstance(part, str):
            return part
        named_by = "job" if part.kind in UNNAMED else part.kind
        model: Any = apps.get_model("django_jobs", named_by)
        if not self._visible.sees(model) or (named_by == "job" and not self.names_jobs):
            return str(UNNAMED.get(part.kind, part.label))
        if part.kind == "job_type":
            return part.label
        return self._visible.link(apps.get_model("django_jobs", part.kind), part.id, part.label)


def state_sentence(job: Any, worker: str, why: WhySection, refused: str | None = None) -> Any:
    """What ``job`` does and what comes next. ``refused``: why it cannot be replayed."""
    now = job.read_at
    match JobStatus(job.status):
        case JobStatus.RUNNING:
            return _running(job, worker)
        case JobStatus.SUCCEEDED:
            return joined(" ", (_("Succeeded"), ago(job.finished_at, now), _attempts(job)))
        case JobStatus.DEAD:
            ended = joined(" ", (_("Died"), ago(job.finished_at, now), _attempts(job)))
            if refused:
                return format_html("{}.", ended)
            return format_html(_("{}. It runs again only if it is replayed."), ended)
        case JobStatus.CANCELLED:
            ended = joined(" ", (_("Cancelled"), ago(job.finished_at, now)))
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
