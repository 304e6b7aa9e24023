"""The quarantined job types, and how many jobs each blocks."""

from __future__ import annotations

from dataclasses import dataclass

from ..lifecycle.backlog import MOST_COUNTED
from ..models.database import fetch_named
from .limits import LINES

# Jobs that wait at their gates have no index by type. So the first of each line are read, once for
# all quarantines, and not at all if there is none.
SHARE = "greatest(%(head)s / (SELECT count(*) FROM waiting_line), 1)"
AT_GATES = f"""at_gates AS MATERIALIZED (
    SELECT line.gates, job.job_type FROM waiting_line AS line CROSS JOIN LATERAL (
        SELECT job.job_type FROM django_jobs_job_live AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates = line.gates
        ORDER BY job.gates, job.rank, job.id LIMIT {SHARE}) AS job
)"""
FIRST_OF_LINES = f"""
waiting_line AS MATERIALIZED ({LINES.replace("%(most)s", "%(lines)s")}), {AT_GATES}"""
FIRST_AT_GATES = {"lines": 1_000, "head": 10_000}
"""How many lines are read, and how many jobs of all of them together."""

BLOCKED_AT_GATES = (
    f"""(WITH {FIRST_OF_LINES}
SELECT count(*) FROM at_gates WHERE at_gates.job_type = django_jobs_quarantine.job_type
    AND django_jobs_quarantine.lifted_at IS NULL)"""
    % FIRST_AT_GATES
)
"""For a queryset of quarantines: the jobs of each that wait at their gates."""

# Counts the others by their index, up to the bound, each in a subquery.
QUARANTINES = f"""
WITH {FIRST_OF_LINES}
SELECT quarantine.job_type,
    extract(epoch FROM clock_timestamp() - quarantine.since)::float8 AS since_seconds,
    quarantine.reason, quarantine.by,
    (SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job AS job
        WHERE job.status = 'blocked' AND job.reason = 'quarantined'
          AND job.job_type = quarantine.job_type
        ORDER BY job.job_type, job.id LIMIT %(most)s) AS counted)
    + (SELECT count(*) FROM at_gates WHERE at_gates.job_type = quarantine.job_type) AS blocked,
    (SELECT count(*) FROM waiting_line) >= %(lines)s OR EXISTS (
        SELECT FROM at_gates GROUP BY gates HAVING count(*) >= {SHARE}) AS more_blocked
FROM django_jobs_quarantine AS quarantine
WHERE quarantine.lifted_at IS NULL
ORDER BY quarantine.job_type
LIMIT 1000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSnapshot:
    """A job type that has been quarantined for ``since_seconds``. ``blocked`` counts its jobs and
    stops at 100,000; with ``more_blocked``, more of them may wait at their gates. ``by`` is empty
    if a worker quarantined it."""

    job_type: str
    since_seconds: float
    reason: str
    by: str
    blocked: int
    more_blocked: bool

    @property
    def blocked_text(self) -> str:
        """How many jobs it blocks: ``12``, or ``12+`` if there may be more."""
        more = self.more_blocked and self.blocked < MOST_COUNTED
        return capped(self.blocked) + ("+" if more else "")


PARAMETERS = {"most": MOST_COUNTED, **FIRST_AT_GATES}


def take_quarantines() -> tuple[QuarantineSnapshot, ...]:
    """The first 1,000 quarantined job types, by name."""
    return tuple(QuarantineSnapshot(**row) for row in fetch_named(QUARANTINES, PARAMETERS))


def capped(count: int, most: int = MOST_COUNTED) -> str:
    """``12``, or ``100000+`` if counting stopped there."""
    return f"{count}+" if count >= most else str(count)
