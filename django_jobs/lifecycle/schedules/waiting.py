"""waiting -> ready, when the job before it of the same schedule has ended."""

from __future__ import annotations

from ...models.database import fetch, fetch_locking
from ..job_columns import AT_THE_GATES
from ..notifying import notify_after_commit

UNDER_WAY = """live.status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
              AND (live.status <> 'waiting' OR live.awaits IS NOT NULL)"""
"""A job that waits for a signal has begun: the next one of its schedule waits for its end."""

# A schedule runs one job at a time. Locks each schedule that has waiting jobs and none under way,
# as firing does; the next statement checks again under the lock.
LOCK_WAITING = f"""
SELECT schedule.id FROM django_jobs_schedule AS schedule
WHERE schedule.id = ANY(ARRAY(
    SELECT DISTINCT schedule_id FROM django_jobs_job_live AS waiting
    WHERE schedule_id IS NOT NULL AND status = 'waiting' AND awaits IS NULL
      AND NOT EXISTS (
        SELECT 1 FROM django_jobs_job_live AS live
        WHERE live.schedule_id = waiting.schedule_id
          AND {UNDER_WAY})))
ORDER BY schedule.id
FOR NO KEY UPDATE SKIP LOCKED
"""
# Skips a job that an operation has locked until the next look: locks are taken in another order
# here, so waiting could deadlock. The job keeps its jitter.
START_NEXT_WAITING = f"""
WITH next AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE status = 'waiting' AND id = ANY(ARRAY(
        SELECT (SELECT min(one.id) FROM django_jobs_job_live AS one
                WHERE one.schedule_id = waiting.schedule_id AND one.status = 'waiting'
                  AND one.awaits IS NULL)
        FROM unnest(%(schedules)s::bigint[]) AS waiting (schedule_id)
        WHERE NOT EXISTS (
            SELECT 1 FROM django_jobs_job_live AS live
            WHERE live.schedule_id = waiting.schedule_id
              AND {UNDER_WAY})))
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_job_live AS job
SET status = CASE WHEN job.available_at > clock.now THEN 'scheduled' ELSE {AT_THE_GATES} END,
    available_at = greatest(job.available_at, clock.now),
    rank = job.rank + greatest(
        date_part('epoch', clock.now) - date_part('epoch', job.available_at), 0)
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = ANY(ARRAY(SELECT id FROM next))
RETURNING job.queue
"""
# Nothing else would start the jobs of a schedule that was deleted.
START_ORPHANS = f"""
WITH orphans AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE schedule_id IS NOT NULL AND status = 'waiting' AND awaits IS NULL
      AND NOT EXISTS (
        SELECT 1 FROM django_jobs_schedule WHERE id = django_jobs_job_live.schedule_id)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_job_live AS job SET status = {AT_THE_GATES}
WHERE job.id = ANY(ARRAY(SELECT id FROM orphans))
RETURNING job.queue
"""


def start_next_waiting() -> int:
    """Start the next waiting job of each schedule that has none under way; return how many started.

    Call it in a transaction: the schedules stay locked until that ends. Notifies the queues after
    commit.
    """
    schedules = [id_ for (id_,) in fetch(LOCK_WAITING, {})]
    queues = (
        [queue for (queue,) in fetch_locking(START_NEXT_WAITING, {"schedules": schedules})]
        if schedules
        else []
    )
    queues += [queue for (queue,) in fetch_locking(START_ORPHANS, {})]
    for queue in set(queues):
        notify_after_commit(queue)
    return len(queues)
