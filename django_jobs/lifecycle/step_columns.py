"""Parts of statements that open steps of workflows."""

from __future__ import annotations

from .job_columns import AT_ITS_RUN_AT, AT_THE_GATES

OPENS_AT = f"""CASE WHEN jsonb_exists(job.headers, '{AT_ITS_RUN_AT}')
                                 THEN greatest(clock.now, job.available_at)
                                 ELSE clock.now + (job.available_at - job.created_at) END"""
"""The due time of a waiting ``job`` that opens at ``clock.now``. How far it is delayed follows from
the times that it was inserted with, and counts from its opening."""


def opening_at(left: str) -> str:
    """The SET of a statement that opens a waiting ``job`` if ``left``, an expression, is 0, at
    ``clock.now``."""
    return f"""(prerequisites, status, available_at, rank, expires_at) = (
        SELECT step.left,
            CASE WHEN step.left > 0 THEN 'waiting'
                 WHEN step.opens_at > clock.now THEN 'scheduled'
                 ELSE {AT_THE_GATES} END,
            CASE WHEN step.left > 0 THEN job.available_at ELSE step.opens_at END,
            CASE WHEN step.left > 0 THEN job.rank
                 ELSE job.rank + date_part('epoch', step.opens_at - job.available_at) END,
            CASE WHEN step.left > 0 THEN job.expires_at
                 ELSE clock.now + (job.expires_at - job.created_at) END
        FROM (SELECT {left} AS left, {OPENS_AT} AS opens_at OFFSET 0) AS step)"""


def value_for_job(values: str, ids: str) -> str:
    """Of the array ``values``, what belongs to the id of ``job`` in the sorted array ``ids``.

    A join would read one side from end to end for each row of the other, where the planner believes
    that there is one: statistics are older than the steps of a run that has just started. This is a
    binary search, and the rows are found by an array of ids, which is an index search.
    """
    return f"({values})[width_bucket(job.id, ({ids}))]"
