"""The reported progress of a job, and its receipts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, QuerySet, Sum
from django.utils.translation import gettext as _

from ...models import JobStatus, Progress, Receipt
from ..base.formatting import moment_and_age
from ..base.json_display import LARGEST, Document, as_text, document, hidden

MOST_RECEIPTS = 50
LONGEST_ANSWER = 10_000
"""Characters of an answer's JSON to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A receipt, ready for display."""

    key: str
    attempt: int
    made: str
    prevented: int
    answer: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The last progress report of a job. ``fraction`` is None if it reported none."""

    fraction: float | None
    percent: str
    note: str
    at: str
    attempt: int
    checkpoint: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """The last report of a job, and the latest ``calls`` of its ``receipts``. ``prevented`` counts
    the duplicate calls that all receipts prevented."""

    reported: Reported | None
    calls: list[Call]
    receipts: int
    prevented: int


def progress_of(job: Any, seen: bool) -> Progressed | None:
    """The progress and the receipts of ``job``; None if it has neither. ``seen``: the user may see
    data."""
    alias = job._state.db
    rows = Progress.objects.using(alias).defer("checkpoint").filter(pk=job.pk)
    row = rows.annotate(**as_text("checkpoint", LARGEST)).first()
    receipts = Receipt.objects.using(alias).filter(job_id=job.pk)
    count, prevented = receipts.aggregate(Count("pk"), Sum("prevented")).values()
    if row is None and not count:
        return None
    return Progressed(
        reported=None if row is None else _reported(job, row, seen),
        calls=_calls(receipts, seen, job.read_at) if count else [],
        receipts=count,
        prevented=prevented or 0,
    )


def _reported(job: Any, row: Any, seen: bool) -> Reported:
    # A success drops unwritten reports, so the note and the checkpoint may be out of date.
    done = job.status == JobStatus.SUCCEEDED
    fraction = 1.0 if done else row.fraction
    label = str(_("Last checkpoint") if done else _("Checkpoint"))
    return Reported(
        fraction=fraction,
        percent="" if fraction is None else f"{int(fraction * 100)} %",
        note="" if done else row.note,
        at=moment_and_age(row.reported_at, job.read_at),
        attempt=row.attempt,
        checkpoint=document(label, row.checkpoint_text, row.checkpoint_length)
        if seen
        else hidden(label),
    )


def _calls(receipts: QuerySet[Receipt], seen: bool, now: datetime) -> list[Call]:
    rows: QuerySet[Any] = receipts.defer("answer").order_by("-pk")
    rows = rows.annotate(**as_text("answer", LONGEST_ANSWER))
    label = str(_("Answer"))
    return [
        Call(
            key=row.key,
            attempt=row.attempt,
            made=moment_and_age(row.made_at, now),
            prevented=row.prevented,
            answer=document(label, row.answer_text, row.answer_length) if seen else hidden(label),
        )
        for row in rows[:MOST_RECEIPTS]
    ]
