"""blocked -> ready in one round trip: jobs that have just come and have a free key as their only
gate.

An admission takes five. This is a short cut to the same: it takes its turn with admissions, and
leaves to them what it does not decide.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ...domain.admission import MOST_AT_ONCE
from ...domain.gates import KEY_ALONE
from ...models.database import fetch_last
from ..job_columns import IN_LINE
from .admission import TAKE_TURN

FEW = 20
"""Lines that it looks at. Where more wait, an admission looks at all of them."""

# Two statements, because a statement does not see what was committed after it began: the second one
# sees what the admission before it wrote. Its commit waits for no disk, as that of an admission.
TURN = f"""
SELECT set_config('django_jobs.turn', ({TAKE_TURN})::text, true),
    set_config('synchronous_commit', 'off', true)
"""
# Lines of one key that differ in something else compete for its slots: an admission compares them,
# and counts what a queue with a limit has left. Lines of other queues are left to their workers.
ADMIT_ARRIVALS = f"""
WITH RECURSIVE line AS (
    SELECT ''::text AS gates, NULL::varchar AS key, NULL::varchar AS queue
    WHERE current_setting('django_jobs.turn', true) = 'true'
    UNION ALL
    SELECT next.gates, next.concurrency_key, next.queue
    FROM line CROSS JOIN LATERAL (
        SELECT job.gates, job.concurrency_key, job.queue FROM django_jobs_job_live AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates > line.gates
        ORDER BY job.gates, job.rank, job.id LIMIT 1
    ) AS next
), waiting AS MATERIALIZED (
    SELECT seen.gates, seen.key, count(*) OVER (PARTITION BY seen.key) AS lines,
        CASE WHEN queue.max_concurrency IS NULL
             THEN substring(seen.gates from %(key_alone)s)::integer END AS slots,
        coalesce(queue.paused_at IS NULL AND queue.name = ANY(%(own)s::text[]), false) AS open
    FROM (SELECT * FROM line LIMIT %(few)s + 2) AS seen
        LEFT JOIN django_jobs_queue AS queue ON queue.name = seen.queue
    WHERE seen.gates <> ''
), picked AS MATERIALIZED (
    SELECT next.id FROM waiting AS line CROSS JOIN LATERAL (
        SELECT job.id FROM django_jobs_job_live AS job
        WHERE {IN_LINE}
        ORDER BY job.gates, job.rank, job.id
        LIMIT greatest(0, least(%(most)s, line.slots - (
            SELECT count(*) FROM django_jobs_job_live AS taken
            WHERE taken.concurrency_key IS NOT NULL AND taken.status IN ('ready', 'running')
              AND taken.concurrency_key = line.key)))
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS next
    WHERE line.open AND line.slots IS NOT NULL AND line.lines = 1
), opened AS (
    UPDATE django_jobs_job_live AS job SET status = 'ready', reason = ''
    WHERE job.id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING job.queue
)
SELECT queue, false FROM opened
UNION ALL
SELECT NULL, current_setting('django_jobs.turn', true) IS DISTINCT FROM 'true'
    OR count(*) > %(few)s OR coalesce(bool_or(open AND (slots IS NULL OR lines > 1)), false)
FROM waiting
"""


@dataclass(slots=True)
class Arrivals:
    """What became of the jobs that wait. ``queues`` have jobs that are ready now. ``rest``: an
    admission has to look at the lines too."""

    queues: set[str] = field(default_factory=set)
    rest: bool = True


def admit_arrivals(queues: Collection[str]) -> Arrivals:
    """Make jobs of these queues ready that wait for a key alone which has room."""
    parameters = {
        "key_alone": KEY_ALONE,
        "few": FEW,
        "most": MOST_AT_ONCE,
        "own": list(queues),
    }
    rows = fetch_last([TURN, ADMIT_ARRIVALS], parameters)
    return Arrivals(
        {queue for queue, _ in rows if queue is not None}, any(rest for _, rest in rows)
    )
