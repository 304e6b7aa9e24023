"""What a job was doing when a person last asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext as _

from ...lifecycle.operations import inspections
from ..base.formatting import duration, moment_and_age, refusal_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """A question about an attempt, ready for display: with a stack, or why there is none."""

    attempt: int
    asked: str
    by: str
    place: str
    stack: str


def inspection_of(job: Any) -> Inspected | None:
    """The last question about ``job``; None if there was none in the last hour."""
    question = inspections.latest(job.pk)
    if question is None:
        return None
    asked = moment_and_age(question.asked_at, job.read_at)
    fields: dict[str, Any] = {"attempt": question.attempt, "asked": asked, "by": question.asked_by}
    if question.answered_at is None:
        note = _("No answer yet. Reload the page. If none comes: %(why)s.")
        why = refusal_text(inspections.why_unanswered(question))
        return Inspected(**fields, place=note % {"why": why}, stack="")
    place = _("Process %(process)s, %(thread)s, running for %(time)s") % {
        "process": question.process,
        "thread": question.thread or _("no thread"),
        "time": duration(timedelta(seconds=question.ran_seconds or 0.0)),
    }
    return Inspected(**fields, place=place, stack=question.stack)
