"""The queue in which a job is retried, if its handler asked for another one."""

from __future__ import annotations

from dataclasses import replace

from ..domain.decisions import Decision
from ..domain.gates import parse
from ..domain.ranking import AGEING_WEIGHT
from ..models import Job, Queue
from ..models.database import jobs_connection
from ..models.queue import is_queue_name
from .job_columns import ClaimedJob


def admitted(decision: Decision, job: ClaimedJob, stays: str = "") -> Decision:
    """``decision``, if ``job`` can go to its queue. Otherwise the job is retried in its own queue,
    and the error says why. ``stays`` is a reason that is already known.

    A key that is taken after this look makes PostgreSQL refuse the write.
    """
    queue = decision.queue
    assert queue is not None
    assert decision.error is not None  # a retry is a failure
    if queue == job.queue:
        return decision
    problem = stays or _problem(job, queue)
    if not problem:
        return decision
    note = f"not moved to the queue {queue!r}: {problem}"
    return replace(decision, queue=None, error=decision.error.noted(note))


def weight_of(queue: str) -> float:
    """The weight of a point of priority in ``queue``."""
    row = Queue.objects.recent(queue, jobs_connection().alias)
    return AGEING_WEIGHT if row is None else row.priority_weight


def gates_in(queue: str, job: ClaimedJob) -> str | None:
    """The gates of ``job`` in ``queue``, as the column has them; None if they stay as they are."""
    try:
        return None if job.gates is None else parse(job.gates).in_queue(queue).text
    except ValueError:  # a row that was not written by enqueue
        return None


def _problem(job: ClaimedJob, queue: str) -> str:
    alias = jobs_connection().alias
    if not is_queue_name(queue) or Queue.objects.recent(queue, alias) is None:
        return "there is no such queue"
    if job.idempotency_key is None:
        return ""
    holders = Job.objects.using(alias).holding_key(queue, job.idempotency_key)
    holder = holders.exclude(pk=job.id).values_list("pk", flat=True).first()
    return "" if holder is None else f"job {holder} holds its idempotency key there"
