"""blocked -> ready in one round trip: jobs that have just come and have one free gate.

An admission takes three to five. This is a short cut to the same: it takes its turn with
admissions, and leaves to them what it does not decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...domain.admission import MOST_AT_ONCE
from ...domain.gates import ALONE, LoneGate
from ...models.database import fetch_planned
from ...models.resource import LIMITS_MORE_THAN_SLOTS
from ..job_columns import ADMITTED, IN_LINE
from ..known_types import own_parameters
from .admission import TURN

FEW = 20
"""Lines that it looks at. Where more wait, an admission looks at all of them."""


def _admit_arrivals(*, holder: str, rivals: str, decided: str, left: str) -> str:
    """The statement for one kind of gate, because to plan one for all kinds takes 1.7 ms, and this
    0.8 to 1.2. ``holder`` is the value of that gate, ``rivals`` the lines that may want the same
    slots, itself included, ``decided`` whether nothing but slots matters, and ``left`` the free
    slots."""
    return f"""
WITH RECURSIVE line AS (
    SELECT ''::text COLLATE "C" AS gates, NULL::text AS holder, NULL::varchar AS queue
    WHERE current_setting('django_jobs.turn', true) = 'true'
    UNION ALL
    SELECT next.gates, next.holder, next.queue
    FROM line CROSS JOIN LATERAL (
        SELECT job.gates, {holder} AS holder, job.queue FROM django_jobs_job_live AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates > line.gates
        ORDER BY job.gates, job.rank, job.id LIMIT 1
    ) AS next
), waiting AS MATERIALIZED (
    SELECT seen.gates, seen.holder, seen.queue, {rivals} AS rivals,
        seen.gates ~ %(alone)s AND queue.max_concurrency IS NULL AND {decided} AS decided,
        coalesce(queue.paused_at IS NULL AND queue.name = ANY(%(own)s::text[]), false) AS open
    FROM (SELECT * FROM line LIMIT %(few)s + 2) AS seen
        LEFT JOIN django_jobs_queue AS queue ON queue.name = seen.queue
    WHERE seen.gates <> ''
), picked AS MATERIALIZED (
    SELECT next.id FROM waiting AS line CROSS JOIN LATERAL (
        SELECT job.id FROM django_jobs_job_live AS job
        WHERE {IN_LINE}
        ORDER BY job.gates, job.rank, job.id
        LIMIT greatest(0, least(%(most)s, {left}))
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS next
    WHERE line.open AND line.decided AND line.rivals = 1
), opened AS (
    UPDATE django_jobs_job_live AS job SET {ADMITTED}
    WHERE job.id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING job.queue
)
SELECT queue, false FROM opened
UNION ALL
SELECT NULL, current_setting('django_jobs.turn', true) IS DISTINCT FROM 'true'
    OR count(*) > %(few)s OR coalesce(bool_or(open AND (rivals > 1 OR NOT decided)), false)
FROM waiting
"""


# Lines that compete are compared by an admission, which also counts what a queue with a limit has
# left. Lines of other queues are left to their workers. Those of a tenant compete with each other
# for its limit, which is of all queues, and with those of others for the room of their queue.
ADMIT_BY_KEY = _admit_arrivals(
    holder="job.concurrency_key",
    rivals="count(*) OVER (PARTITION BY seen.holder)",
    decided="true",
    left="""substring(line.gates from %(alone)s)::integer - (
            SELECT count(*) FROM django_jobs_job_live AS taken
            WHERE taken.concurrency_key IS NOT NULL AND taken.status IN ('ready', 'running')
              AND taken.concurrency_key = line.holder)""",
)
ADMIT_BY_RESOURCE = _admit_arrivals(
    holder="job.resources ->> 0",
    rivals="count(seen.holder) OVER ()",
    decided=f"""EXISTS (
            SELECT 1 FROM django_jobs_resource AS resource
            WHERE resource.name = seen.holder AND resource.max_concurrency IS NOT NULL
              AND NOT ({LIMITS_MORE_THAN_SLOTS}))""",
    left="""(
            SELECT max_concurrency FROM django_jobs_resource WHERE name = line.holder) - (
            SELECT count(*) FROM django_jobs_job_live AS taken
            WHERE taken.resources IS NOT NULL AND taken.status IN ('ready', 'running')
              AND taken.resources ? line.holder)""",
)
ADMIT_BY_TENANT = _admit_arrivals(
    holder="job.tenant",
    rivals="""greatest(count(*) OVER (PARTITION BY seen.queue),
            count(*) OVER (PARTITION BY seen.holder))""",
    decided="""count(*) OVER () <= %(few)s AND NOT EXISTS (
            SELECT FROM django_jobs_tenant WHERE name = seen.holder AND rate IS NOT NULL)""",
    left="""(
            SELECT CASE WHEN paused_at IS NULL THEN max_concurrency ELSE 0 END - (
                SELECT count(*) FROM django_jobs_job_live AS taken
                WHERE taken.tenant IS NOT NULL AND taken.status IN ('ready', 'running')
                  AND taken.tenant = line.holder)
            FROM django_jobs_tenant WHERE name = line.holder),
        (%(room)s::integer[])[array_position(%(own)s::text[], line.queue::text)] - (
            SELECT count(*) FROM django_jobs_job_live AS taken
            WHERE taken.tenant IS NOT NULL AND taken.status IN ('ready', 'running')
              AND taken.status = 'ready' AND taken.queue = line.queue)""",
)
ADMIT_ARRIVALS = {
    LoneGate.KEY: ADMIT_BY_KEY,
    LoneGate.RESOURCE: ADMIT_BY_RESOURCE,
    LoneGate.TENANT: ADMIT_BY_TENANT,
}


@dataclass(slots=True)
class Arrivals:
    """What became of the jobs that wait. ``queues`` have jobs that are ready now. ``rest``: an
    admission has to look at the lines too."""

    queues: set[str] = field(default_factory=set)
    rest: bool = True


def admit_arrivals(gate: LoneGate, room: Mapping[str, int]) -> Arrivals:
    """Make jobs ready that wait for this kind of gate alone, if it has room.

    ``room`` has, for each queue of this worker, how many jobs it can start now. A tenant is
    admitted no more than that.
    """
    parameters = {
        "alone": ALONE[gate],
        "few": FEW,
        "most": MOST_AT_ONCE,
        "own": list(room),
        "room": list(room.values()),
        **own_parameters(),
    }
    rows = fetch_planned(ADMIT_ARRIVALS[gate], parameters, before=TURN)
    admitted = Counter(queue for queue, _ in rows if queue is not None)
    rest = any(rest for _, rest in rows)
    if gate is LoneGate.TENANT:  # of a line that filled the room more may wait
        rest = rest or any(admitted[queue] >= min(room[queue], MOST_AT_ONCE) for queue in admitted)
    return Arrivals(set(admitted), rest)
