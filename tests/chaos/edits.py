"""A person changes the rule of a schedule while it fires: drawn from a seed and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAME = "edited"
INTERVALS = (1.0, 2.0, 3.0)
PAUSE = 2.0, 6.0
"""Seconds from one edit to the next: less than one due time of a rule, and several."""

# The payload of a job says by which rule it is due. The due times that pass between an edit and the
# moment in which a worker notices it belong to no rule; from then on none is left out.
PROBLEM = f"""
SELECT * FROM (
    SELECT tick.due_at, tick.outcome, job.payload,
        tick.due_at - lag(tick.due_at) OVER (PARTITION BY job.payload->'rule' ORDER BY tick.due_at)
            AS after, (job.payload->'rule')::int
            < max((job.payload->'rule')::int) OVER (ORDER BY tick.due_at) AS is_of_a_former_rule
    FROM django_jobs_tick AS tick LEFT JOIN django_jobs_job AS job ON job.id = tick.job_id
    WHERE tick.schedule_id = (SELECT id FROM django_jobs_schedule WHERE name = '{NAME}')
) AS one
WHERE payload IS NULL OR outcome <> 'fired' OR is_of_a_former_rule
    OR after <> (payload->'every')::float8 * interval '1 second'
"""

COUNTED = f"""
SELECT count(DISTINCT job.payload->'rule') FROM django_jobs_job AS job
JOIN django_jobs_schedule AS schedule ON schedule.id = job.schedule_id
WHERE schedule.name = '{NAME}'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The rule with this number, from ``at`` seconds on."""

    at: float
    rule: int
    every: float


def events(seed: int, seconds: float) -> list[Edit]:
    """The storm's, in order of time."""
    choice = random.Random(f"{seed}-edits")
    made: list[Edit] = []
    at = choice.uniform(*PAUSE)
    while at < seconds:
        made.append(Edit(at=round(at, 3), rule=len(made) + 1, every=choice.choice(INTERVALS)))
        at += choice.uniform(*PAUSE)
    return made
