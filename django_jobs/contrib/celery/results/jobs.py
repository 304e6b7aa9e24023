"""Finds the job of a task."""

from __future__ import annotations

from ....conf import conf
from ....domain.states import LIVE
from ....models import Job, Queue
from ....models.database import jobs_connection
from ..messages.task_ids import job_id_of

WRITTEN_HERE = """
SELECT CASE WHEN age(xmin) <= 0 THEN pg_xact_status(
    (pg_current_xact_id_if_assigned()::text::bigint - age(xmin))::text::xid8
) = 'in progress' END
FROM django_jobs_job WHERE id = %s
"""
"""Whether the open transaction has written the row, or one of its savepoints has: of all rows that
it sees, only these are of a transaction that has not ended."""


def is_written_here(job: Job) -> bool:
    """Whether no worker sees the row of the job as this transaction does, until it commits."""
    with jobs_connection().cursor() as cursor:
        cursor.execute(WRITTEN_HERE, [job.pk])
        return bool(cursor.fetchone() == (True,))


def job_of(task_id: str) -> Job | None:
    """The job with this task id, the newest if several have it; None if there is none, or retention
    has deleted it.

    An id that was given by ``apply_async(task_id=)`` is the idempotency key of the job. While the
    job is live an index finds it; among the ended ones no index does.
    """
    jobs = Job.objects.using(conf().database)
    if (job_id := job_id_of(task_id)) is not None:
        return jobs.filter(pk=job_id).first()
    keyed = jobs.filter(idempotency_key=task_id)
    live = keyed.filter(queue__in=Queue.objects.names(), status__in=LIVE)
    return live.first() or keyed.order_by("-pk").first()
