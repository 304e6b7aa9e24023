"""The queue of a job: a pause, its limit and who has it, and how many jobs are before it."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext as _

from ..domain.states import JobState
from ..models import Job
from .explanation import Gate, Ref, Text, fill, holding, plain
from .facts import (
    MOST_BEFORE,
    MOST_READ,
    Facts,
    Row,
    before_in,
    holders,
    jobs_text,
    pause_text,
    usage_of,
)

QUEUE = """
SELECT id, name, paused_at, paused_reason, paused_by, paused_until, max_concurrency
FROM django_jobs_queue WHERE name = %(queue)s
"""
# No index finds the running jobs of one queue, because few jobs run.
LIMIT = usage_of(f"""
    SELECT id, status, claimed_at, attempt FROM (
        SELECT id, status, claimed_at, attempt, queue FROM django_jobs_job_live
        WHERE status = 'running' AND EXISTS (
            SELECT FROM django_jobs_queue
            WHERE name = %(queue)s AND max_concurrency IS NOT NULL)
        ORDER BY worker_id LIMIT {MOST_READ}) AS running
    WHERE running.queue = %(queue)s""")
BEFORE = before_in(
    """
    SELECT rank, id FROM django_jobs_job_live WHERE queue = %(queue)s AND status = 'ready'
    ORDER BY rank, id""",
    MOST_BEFORE,
)


def parts(job: Job) -> dict[str, str]:
    found = {"queue": QUEUE, "limit": LIMIT}
    return {**found, "before": BEFORE} if job.status == JobState.READY else found


def gates(job: Job, facts: Facts) -> Iterator[Gate]:
    row = facts.row("queue")
    if row is None:
        text = fill(_("queue %(name)s no longer exists"), name=job.queue)
        sentence = fill(_("The queue %(name)s no longer exists."), name=job.queue)
        yield _closed(_("Queue"), text, sentence)
        return
    link = Ref("queue", row["id"], row["name"])
    if row["paused_at"] is None:
        text = fill(_("%(name)s is not paused"), name=link)
        yield Gate("queue", _("Queue"), text)
    else:
        text = pause_text(row, fill(_("queue %(name)s"), name=link), facts)
        sentence = pause_text(row, fill(_("Queue %(name)s"), name=link), facts)
        yield _closed(_("Queue"), text, (*sentence, "."))
    yield _limit(row, link, facts)


def _closed(title: str, text: Text, sentence: Text) -> Gate:
    return holding("queue", title, text, sentence=sentence, phrase=plain(text), lasting=True)


def _limit(row: Row, link: Ref, facts: Facts) -> Gate:
    title, limit, used = _("Limit"), row["max_concurrency"], facts.row("limit")
    if limit is None or used is None:
        return Gate("limit", title, fill(_("%(name)s has none"), name=link))
    values = {"taken": used["taken"], "limit": limit}
    text = fill(_("%(taken)s of %(limit)s slots"), **values)
    if used["taken"]:
        text = fill("%(text)s: %(jobs)s", text=text, jobs=holders(used, facts))
    if used["taken"] < limit:
        return Gate("limit", title, text)
    template = _("Waits for a free slot of queue %(name)s: its limit of %(limit)s is full.")
    phrase = _("the limit of queue %(name)s is full") % {"name": row["name"]}
    return holding(
        "limit",
        title,
        text,
        sentence=fill(template, name=link, limit=limit),
        phrase=phrase,
        momentary=True,
    )


def before(facts: Facts) -> tuple[int | None, bool]:
    """How many jobs are before it in its line, and whether more; None if it is in no line."""
    row = facts.row("before") or facts.row("line")
    if row is None:
        return None, False
    return row["before"], row["more"]


def line(facts: Facts) -> Iterator[Gate]:
    """The ready jobs that workers take before it."""
    if facts.row("before") is None:
        return
    count, more = before(facts)
    assert count is not None
    if not count:
        yield Gate("before", _("Line"), (_("it is the next of its queue"),))
        return
    text = fill(_("%(jobs)s before it"), jobs=jobs_text(count, more))
    yield holding("before", _("Line"), text, momentary=True)
