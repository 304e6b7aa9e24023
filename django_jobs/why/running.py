"""A job that a worker holds, and one that has ended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.utils.translation import gettext as _

from ..conf import conf
from ..domain.numbers import duration_text
from ..domain.states import JobState
from ..models import Job, JobStatus, WorkerStatus
from ..models.worker import IS_ALIVE
from ..separators import localized, number_text
from .explanation import Gate, GateState, Text, fill, holding
from .facts import Facts, Row, clock, moment, worker_ref

WORKER = """
SELECT id, name, status, lease_expires_at, lease_expires_at < statement_timestamp() AS expired,
    threads + async_slots AS slots, (
        SELECT count(*) FROM (
            SELECT FROM django_jobs_job_live WHERE status = 'running' AND worker_id = worker.id
            ORDER BY worker_id LIMIT 10000) AS job) AS jobs
FROM django_jobs_worker AS worker WHERE id = %(worker)s
"""
RESCUERS = f"""
SELECT count(*) AS workers FROM (
    SELECT FROM django_jobs_worker AS worker WHERE {IS_ALIVE}
    LIMIT 1000) AS alive
"""
PROGRESS = """
SELECT fraction, note FROM django_jobs_progress
WHERE job_id = %(id)s AND attempt = %(attempt)s
"""


def parts(job: Job) -> dict[str, str]:
    return {"worker": WORKER, "rescuers": RESCUERS, "progress": PROGRESS}


def gates(job: Job, facts: Facts) -> Iterator[Gate]:
    """Its lease, whether its handler has started, and a cancel."""
    yield _lease(job, facts)
    row = facts.row("worker")
    if row is not None and row["jobs"] > row["slots"] and facts.row("progress") is None:
        text = fill(
            _("%(worker)s holds %(jobs)s jobs for %(slots)s threads: it may wait there for one"),
            worker=worker_ref(row),
            jobs=row["jobs"],
            slots=row["slots"],
        )
        yield Gate("start", _("Start"), text, state=GateState.UNKNOWN)
    if job.force_requested_at is not None:
        text = fill(
            _(
                "stop by force requested %(age)s ago: an exception is raised in its handler at the "
                "next heartbeat of its worker, and its process is killed a second later"
            ),
            age=facts.since(job.force_requested_at),
        )
        yield Gate("cancel", _("Cancel"), text, state=GateState.UNKNOWN)
    elif job.cancel_requested_at is not None:
        text = fill(
            _(
                "requested %(age)s ago: its handler ends when it checks for this, or at its "
                "next wait"
            ),
            age=facts.since(job.cancel_requested_at),
        )
        yield Gate("cancel", _("Cancel"), text, state=GateState.UNKNOWN)


def running_sentence(job: Job, facts: Facts) -> Text:
    """Since when it runs and where, and what is wrong with that."""
    row, progress = facts.row("worker"), facts.row("progress")
    values = {
        "age": facts.since(job.claimed_at),
        "worker": worker_ref(row) if row else _("worker %(id)s (deleted)") % {"id": job.worker_id},
        "attempt": job.attempt,
    }
    text = fill(_("Runs for %(age)s on %(worker)s, attempt %(attempt)s"), **values)
    if progress is not None and progress["fraction"] is not None:
        text = fill(
            "%(text)s, %(share)s %%",
            text=text,
            share=number_text(progress["fraction"] * 100, ".0f"),
        )
    sentences = fill("%(text)s.", text=text)
    if job.cancel_requested_at is not None:
        sentences = fill(
            "%(text)s %(more)s", text=sentences, more=_("Its cancellation was requested.")
        )
    lease = _lease(job, facts)
    if not lease.holds:
        return sentences
    return fill("%(text)s %(more)s", text=sentences, more=lease.sentence)


def _lease(job: Job, facts: Facts) -> Gate:
    title, row = _("Lease"), facts.row("worker")
    sweep = conf().sweep_seconds
    if row is None:
        trouble: Text = fill(_("its worker #%(id)s has no row any more"), id=str(job.worker_id))
    elif row["status"] not in ("running", "draining"):
        trouble = fill(
            _("its worker %(worker)s is %(status)s"),
            worker=worker_ref(row),
            status=str(WorkerStatus(row["status"]).label),
        )
    elif row["expired"]:
        age = facts.since(moment(row["lease_expires_at"]))
        trouble = fill(
            _("the lease of its worker %(worker)s expired %(age)s ago"),
            worker=worker_ref(row),
            age=age,
        )
    else:
        return Gate("lease", title, _lasts(row, sweep, facts))
    rescue: Text = (_("no live worker can take it over: start one"),)
    rescuers = facts.row("rescuers")
    if rescuers is not None and rescuers["workers"]:
        most = localized(duration_text(sweep))
        rescue = fill(_("a live worker takes it over within %(time)s"), time=most)
    text = fill("%(trouble)s; %(rescue)s", trouble=trouble, rescue=rescue)
    first = trouble[0]
    upper = (first[:1].upper() + first[1:], *trouble[1:]) if isinstance(first, str) else trouble
    return holding(
        "lease",
        title,
        text,
        sentence=fill("%(trouble)s; %(rescue)s.", trouble=upper, rescue=rescue),
        phrase="",
    )


def _lasts(row: Row, sweep: float, facts: Facts) -> Text:
    until = moment(row["lease_expires_at"])
    if until is None:
        return fill(_("%(worker)s has one that does not expire"), worker=worker_ref(row))
    rescue = until + timedelta(seconds=sweep)
    return fill(
        _("%(worker)s has it for %(age)s more; unless renewed, the job is taken over by %(time)s"),
        worker=worker_ref(row),
        age=facts.since(until),
        time=clock(rescue),
    )


def ended_sentence(job: Job, facts: Facts) -> Text:
    label = JobStatus(job.status).label
    values = {"status": label[:1].upper() + label[1:], "age": facts.since(job.finished_at)}
    if job.attempt:
        text = fill(_("%(status)s %(age)s ago, attempt %(attempt)s"), **values, attempt=job.attempt)
    else:
        text = fill(_("%(status)s %(age)s ago, without an attempt"), **values)
    if job.status != JobState.SUCCEEDED and job.reason:
        text = fill("%(text)s: %(reason)s", text=text, reason=job.reason)
    return fill("%(text)s.", text=text)
