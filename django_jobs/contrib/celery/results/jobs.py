"""Finds the job of a task."""

from __future__ import annotations

from ....conf import conf
from ....domain.states import LIVE
from ....models import Job, Queue
from ....models.database import jobs_connection
from ..messages.task_ids import job_id_of

WRITTEN_SINCE_BEGIN = (
    "SELECT created_at >= transaction_timestamp() FROM django_jobs_job WHERE id = %s"
)
"""Whether the row is as new as the open transaction. Then that has most likely written it, and no
worker sees it."""


def is_newer_than_transaction(job: Job) -> bool:
    """Whether the job was enqueued since the open transaction began."""
    with jobs_connection().cursor() as cursor:
        cursor.execute(WRITTEN_SINCE_BEGIN, [job.pk])
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
