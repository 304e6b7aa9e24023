"""The quarantined job types, and how many jobs each blocks."""

from __future__ import annotations

from dataclasses import dataclass

from ..lifecycle.backlog import MOST_COUNTED
from ..models.database import fetch_named

# Counts blocked jobs by their index, up to the bound, each in a subquery.
QUARANTINES = """
SELECT quarantine.job_type,
    extract(epoch FROM clock_timestamp() - quarantine.since)::float8 AS since_seconds,
    quarantine.reason, quarantine.by,
    (SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job AS job
        WHERE job.status = 'blocked' AND job.reason = 'quarantined'
          AND job.job_type = quarantine.job_type
        ORDER BY job.job_type, job.id LIMIT %(most)s) AS counted) AS blocked
FROM django_jobs_quarantine AS quarantine
WHERE quarantine.lifted_at IS NULL
ORDER BY quarantine.job_type
LIMIT 1000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSnapshot:
    """A job type that has been quarantined for ``since_seconds``. ``blocked`` counts its jobs and
    stops at 100,000. ``by`` is empty if a worker quarantined it."""

    job_type: str
    since_seconds: float
    reason: str
    by: str
    blocked: int


def take_quarantines() -> tuple[QuarantineSnapshot, ...]:
    """The first 1,000 quarantined job types, by name."""
    return tuple(
        QuarantineSnapshot(**row) for row in fetch_named(QUARANTINES, {"most": MOST_COUNTED})
    )


def capped(count: int) -> str:
    """``12``, or ``100000+`` if counting stopped there."""
    return f"{count}+" if count >= MOST_COUNTED else str(count)
