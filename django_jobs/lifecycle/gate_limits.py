"""How many jobs may wait at a gate: the ``max_waiting`` of resources, tenants and concurrency keys.

Nothing counts them as they come and go: a counter would be written by each of them. A new job
counts those that wait, up to the limit, in the index of the lines. Lines of one queue, of one set
of resources in it and of one tenant of these are neighbours there, so that the index is read from
one queue and set to the next, and of each what waits for the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..domain.gates import QUEUE_AND_RESOURCES, Gates, within
from ..models.database import fetch
from .job_columns import DROPPED, IN_LIVE, NewJobs, as_array, text_array

WAITS = "job.status = 'blocked' AND job.gates IS NOT NULL"
BY_LINE = "ORDER BY job.gates, job.rank, job.id"
"""The order of the index of the lines. With it the planner reads no more of it than a LIMIT says;
without, it may read the table."""

_HEAD = f"""SELECT substring(job.gates FROM '({QUEUE_AND_RESOURCES})') AS text,
            substring(job.gates FROM '{QUEUE_AND_RESOURCES}') AS resources,
            coalesce(substring(job.gates FROM '({QUEUE_AND_RESOURCES})') || 'o', job.gates) AS past
        FROM django_jobs_job_live AS job WHERE {WAITS}"""
HEADS = f"""head AS (
    ({_HEAD} {BY_LINE} LIMIT 1)
    UNION ALL
    SELECT next.* FROM head CROSS JOIN LATERAL (
        {_HEAD} AND job.gates > head.past {BY_LINE} LIMIT 1) AS next
)"""
"""Each queue and set of resources for which jobs wait. Of a text that is not one of gates there is
no ``text``."""

COUNT_WAITING = f"""
WITH RECURSIVE {HEADS}
SELECT (SELECT count(*) FROM (
    SELECT FROM head CROSS JOIN LATERAL (
        SELECT FROM django_jobs_job_live AS job
        WHERE {WAITS} AND job.gates >= head.text || gate.low AND job.gates < head.text || gate.high
        {BY_LINE} LIMIT gate.most) AS one
    WHERE strpos(head.resources, gate.resource) > 0 LIMIT gate.most) AS counted)
FROM unnest(%(resources)s::text[], %(lows)s::text[], %(highs)s::text[], %(mosts)s::bigint[])
    WITH ORDINALITY AS gate (resource, low, high, most, place)
ORDER BY gate.place
"""


def in_queue(name: str) -> str:
    """A condition on ``job.gates``: the lines of the queue with this ``name``.

    The upper end is a pair with any rank. Of two plain ends that it does not know, the planner
    expects one row in 200 between them, and may then sort all rather than stop at a LIMIT."""
    low, high = ends_of_queue(name)
    return f"job.gates >= {low} AND (job.gates, job.rank) < ({high}, '-infinity'::float8)"


def ends_of_queue(name: str) -> tuple[str, str]:
    """Expressions: what the gates of the queue with this ``name`` are at or above, and below."""
    return f"""'["' || {name} || '",'""", f"""'["' || {name} || '"-'"""


def gated_up_to(most: str, name: str = "queue.name") -> str:
    """As :func:`ready_up_to`, the jobs that wait at their gates, in the index of the lines."""
    return f"""(SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job_live AS job
        WHERE {WAITS} AND {in_queue(name)}
        {BY_LINE} LIMIT {most}) AS counted)"""


def in_line(gates: str = "line.gates") -> str:
    """The condition on ``job`` and the order of a statement that reads the line of these gates."""
    return f"WHERE {WAITS} AND job.gates = {gates} {BY_LINE}"


def waiting_up_to(most: str, gates: str = "line.gates") -> str:
    """As :func:`ready_up_to`, the jobs of one line."""
    return f"""(SELECT count(*) FROM (
        SELECT FROM django_jobs_job_live AS job {in_line(gates)} LIMIT {most}) AS counted)"""


MOST_LINES = 1_000
"""Lines among which the lowest job is looked for."""


def dropping_lowest(ctes: str, held: str, ranges: str, ready: str) -> str:
    """A statement that drops the lowest jobs of what is full: as many as ``held`` says that are
    above the limit, of the lines within ``ranges`` and of the ``ready`` ones.

    Lines have no common order of ranks: of each the last jobs are compared, of up to
    :data:`MOST_LINES` lines. Jobs that are locked stay: their claim, or another request that drops
    them, is about to commit. Rows are found by primary key: with their status the planner may add
    the index of the ready ones, and read all of it.
    """
    return f"""
WITH RECURSIVE {ctes}range AS MATERIALIZED ({ranges}
), excess AS MATERIALIZED (
    SELECT least(greatest({held} - %(limit)s::bigint, 0), %(most)s::bigint) AS jobs
), line AS (
    SELECT first.gates, range.high FROM range CROSS JOIN LATERAL (
        SELECT job.gates FROM django_jobs_job_live AS job
        WHERE {WAITS} AND job.gates >= range.low AND job.gates < range.high
        {BY_LINE} LIMIT 1) AS first
    WHERE (SELECT jobs FROM excess) > 0
    UNION ALL
    SELECT next.gates, line.high FROM line CROSS JOIN LATERAL (
        SELECT job.gates FROM django_jobs_job_live AS job
        WHERE {WAITS} AND job.gates > line.gates AND job.gates < line.high
        {BY_LINE} LIMIT 1) AS next
), lowest AS MATERIALIZED (
    SELECT id FROM ({ready}
        SELECT last.* FROM (SELECT gates FROM line LIMIT {MOST_LINES}) AS line
        CROSS JOIN LATERAL (
            SELECT job.id, job.rank FROM django_jobs_job_live AS job
            WHERE {WAITS} AND job.gates = line.gates
            ORDER BY job.gates DESC, job.rank DESC, job.id DESC
            LIMIT (SELECT jobs FROM excess)) AS last
    ) AS either
    ORDER BY rank DESC, id DESC LIMIT (SELECT jobs FROM excess)
), locked AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE id = ANY(ARRAY(SELECT id FROM lowest))
      AND status NOT IN ('waiting', 'scheduled', 'running', 'dead'{"" if ready else ", 'ready'"})
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_job AS job SET {DROPPED}, finished_at = clock_timestamp(),
    reason = %(reason)s
WHERE job.id = ANY(ARRAY(SELECT id FROM locked))
  AND job.status NOT IN ('waiting', 'scheduled', 'running', 'dead')
  AND job.{IN_LIVE}
RETURNING job.id, job.finished_at, job.idempotency_key, job.workflow_run_id, job.queue,
    job.skipped
"""


BEYOND = "%(limit)s::bigint + %(most)s::bigint"
DROP_WAITING = dropping_lowest(
    f"{HEADS}, ",
    f"""(SELECT count(*) FROM (
        SELECT FROM range CROSS JOIN LATERAL (
            SELECT FROM django_jobs_job_live AS job
            WHERE {WAITS} AND job.gates >= range.low AND job.gates < range.high
            {BY_LINE} LIMIT {BEYOND}) AS one
        LIMIT {BEYOND}) AS counted)""",
    """
    SELECT head.text || %(low)s AS low, head.text || %(high)s AS high FROM head
    WHERE strpos(head.resources, %(resource)s) > 0""",
    "",
)


class Gate(NamedTuple):
    """A gate with a limit. A key is that of jobs of one ``tenant``, or of those without one."""

    kind: str
    name: str
    tenant: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def ends(self) -> tuple[str, str, str]:
        """The resource among those of a line, and the ends of the rest of its text."""
        match self.kind:
            case "resource":
                return f'"{self.name}"', *within()
            case "tenant":
                return "", *within(self.name)
        return "", *within(self.tenant, self.name)


class Waiting(NamedTuple):
    """A gate with its ``max_waiting``, how many new jobs want it, and how many wait."""

    gate: Gate
    most: int
    added: int
    counted: int


def _limits_of(new: NewJobs, gates: Gates | None) -> Sequence[tuple[Gate, int]]:
    """The gates of a job that have a ``max_waiting``, with it."""
    if gates is None:
        return ()
    resources, tenants = (new.max_waiting.get(kind, {}) for kind in ("resource", "tenant"))
    found = [(Gate("resource", one), resources[one]) for one in gates.resources if one in resources]
    if gates.tenant is not None and gates.tenant in tenants:
        found.append((Gate("tenant", gates.tenant), tenants[gates.tenant]))
    if gates.key is not None and gates.max_waiting is not None:
        found.append((Gate("concurrency key", gates.key, gates.tenant), gates.max_waiting))
    return found


def count_waiting(
    asked: Iterable[tuple[NewJobs, Gates | None]], *, beyond: int = 0
) -> list[Waiting]:
    """What waits at the gates of these new jobs that have a limit, counted up to that and
    ``beyond`` it. No statement if none has one."""
    added: dict[Gate, list[int]] = {}
    for new, gates in asked:
        for gate, most in _limits_of(new, gates):
            known = added.setdefault(gate, [most, 0])
            known[0] = min(known[0], most)
            known[1] += not new.is_delayed
    if not added:
        return []
    numbers = waiting_at({gate: most + beyond for gate, (most, _) in added.items()})
    return [Waiting(gate, most, new, numbers[gate]) for gate, (most, new) in added.items()]


def waiting_at(mosts: Mapping[Gate, int]) -> dict[Gate, int]:
    """How many jobs wait at these gates, each counted up to its number."""
    resources, lows, highs = zip(*(gate.ends for gate in mosts), strict=True)
    parameters = {
        "resources": text_array(resources),
        "lows": text_array(lows),
        "highs": text_array(highs),
        "mosts": as_array(mosts.values()),
    }
    rows = fetch(COUNT_WAITING, parameters)
    return {gate: counted for gate, (counted,) in zip(mosts, rows, strict=True)}
