"""The reported progress of a job, its receipts, and what it was doing when a person last asked."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, QuerySet, Sum
from django.utils.translation import gettext as _

from ...lifecycle.operations import inspections
from ...models import JobStatus, Progress, Receipt
from ...models.database import fetch
from ...separators import number_text
from ..base.formatting import duration, moment_and_age, refusal_text
from ..base.json_display import LARGEST, as_text, coding_of, document, hidden
from ..layout.tables import Column, Table
from ..lists.change_list import NEWEST

MOST_COUNTED = 10_000
"""Receipts that the page counts."""
MOST_RECEIPTS = 50
LONGEST_ANSWER = 10_000
"""Characters of an answer's JSON to show."""
EXCEPTION = "exc_message"
"""In a checkpoint, the key of an exception that a result backend of Celery was given."""
# For jobs with more than are counted. The index of a job's receipts is not in the order of ids.
LATEST = """
SELECT id FROM (
    SELECT id, job_id FROM django_jobs_receipt ORDER BY id DESC LIMIT %(newest)s
) AS newest
WHERE job_id = %(job)s
LIMIT %(most)s
"""


def progress_of(job: Any, seen: bool) -> dict[str, Any] | None:
    """The last report of ``job``, and the latest ``calls`` of its receipts; None if it has neither.
    ``prevented`` counts the duplicate calls that all receipts prevented. ``seen``: the user may see
    data."""
    alias = job._state.db
    rows = Progress.objects.using(alias).defer("checkpoint").filter(pk=job.pk)
    row = rows.annotate(**as_text("checkpoint", LARGEST)).first()
    receipts = Receipt.objects.using(alias).filter(job_id=job.pk)
    first = receipts.order_by().values("prevented")[: MOST_COUNTED + 1]
    count, prevented = first.aggregate(Count("prevented"), Sum("prevented")).values()
    if row is None and not count:
        return None
    has_more = count > MOST_COUNTED
    calls = _calls(_latest(job) if has_more else receipts, seen, job.read_at) if count else None
    return {
        "reported": None if row is None else _reported(job, row, seen),
        "calls": calls,
        "receipts": number_text(min(count, MOST_COUNTED), more=has_more) if count else "",
        "prevented": number_text(prevented or 0, more=has_more),
        "left_out": _left_out(count, len(calls.rows) if calls else 0),
    }


def _latest(job: Any) -> QuerySet[Receipt]:
    """The latest receipts of a job, as far as they are among the newest of all jobs."""
    found = fetch(LATEST, {"job": job.pk, "newest": NEWEST, "most": MOST_RECEIPTS})
    return Receipt.objects.using(job._state.db).filter(pk__in=[pk for (pk,) in found])


def _left_out(count: int, shown: int) -> str:
    if shown == count:
        return ""
    if shown == MOST_RECEIPTS:
        return _("Only the latest %(most)s are shown.") % {"most": shown}
    text = _("Only those among the newest %(number)s of all jobs are shown.")
    return text % {"number": number_text(NEWEST)}


def _reported(job: Any, row: Any, seen: bool) -> dict[str, Any]:
    # A success drops unwritten reports, so the note and the checkpoint may be out of date.
    done = job.status == JobStatus.SUCCEEDED
    fraction = 1.0 if done else row.fraction
    label = str(_("Last checkpoint") if done else _("Checkpoint"))
    if job.errors_hidden and EXCEPTION in (row.checkpoint_text or ""):
        seen = False
    return {
        "fraction": fraction,
        "percent": "" if fraction is None else f"{int(fraction * 100)} %",
        "note": "" if done else row.note,
        "at": moment_and_age(row.reported_at, job.read_at),
        "attempt": row.attempt,
        "checkpoint": document(
            label, row.checkpoint_text, row.checkpoint_length, coding_of(job.job_type)
        )
        if seen
        else hidden(label),
    }


def _calls(receipts: QuerySet[Receipt], seen: bool, now: datetime) -> Table:
    rows: QuerySet[Any] = receipts.defer("answer").order_by("-pk")
    rows = rows.annotate(**as_text("answer", LONGEST_ANSWER))
    shown = []
    for row in rows[:MOST_RECEIPTS]:
        answer = document("", row.answer_text, row.answer_length) if seen else hidden("")
        made, numbers = moment_and_age(row.made_at, now), (row.attempt, row.prevented)
        attempt, prevented = map(number_text, numbers)
        shown.append((row.key, attempt, made, prevented, answer.html))
    columns = (
        *(Column(_("Key")), Column(_("Attempt"), number=True), Column(_("Made"))),
        *(Column(_("Duplicates prevented"), number=True), Column(_("Answer"))),
    )
    return Table(_("Calls that this job makes once, the latest first"), columns, shown)


def inspection_of(job: Any) -> dict[str, Any] | None:
    """The last question about ``job``, with a stack or why there is none; None if there was none in
    the last hour."""
    question = inspections.latest(job.pk)
    if question is None:
        return None
    asked = moment_and_age(question.asked_at, job.read_at)
    fields: dict[str, Any] = {"attempt": question.attempt, "asked": asked, "by": question.asked_by}
    if question.answered_at is None:
        note = _("No answer yet. Reload the page. If none comes: %(why)s.")
        why = refusal_text(inspections.why_unanswered(question))
        return {**fields, "place": note % {"why": why}, "stack": ""}
    place = _("Process %(process)s, %(thread)s, running for %(time)s") % {
        "process": question.process,
        "thread": question.thread or _("no thread"),
        "time": duration(timedelta(seconds=question.ran_seconds or 0.0)),
    }
    return {**fields, "place": place, "stack": question.stack}
