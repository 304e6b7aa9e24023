"""Counts and times of all attempts, by queue and job type, from the table of totals."""

from __future__ import annotations

from ..domain.histograms import BUCKETS
from ..domain.states import RunState
from ..lifecycle.run_totals import ALL_TIMES


def _runs(outcome: RunState) -> str:
    return f"'{outcome}', coalesce(sum(runs) FILTER (WHERE outcome = '{outcome}'), 0)"


def histogram(time: str) -> str:
    """The column of what :class:`~django_jobs.domain.histograms.Histogram` takes."""
    # The sum of bigints is a numeric, which takes twice as long. Floats are exact up to 9e15. As a
    # text the list is made in half of the time of an array that becomes JSON.
    places = ", ".join(f"sum({time}_buckets[{place}]::float8)" for place in range(1, BUCKETS + 1))
    made = f"json_build_array(('[' || concat_ws(',', {places}) || ']')::json, sum({time}_seconds))"
    if time == "gate":  # most types have none, and no samples of it
        made = f"CASE WHEN sum(gate_seconds) > 0 THEN {made} END"
    return f"{made} AS {time}"


SUMS = f"""
SELECT queue, job_type, json_build_object({", ".join(map(_runs, RunState))}) AS outcomes,
    sum(slo_runs)::bigint AS slo_runs, sum(slo_met)::bigint AS slo_met,
    sum(retries)::bigint AS retries, sum(died)::bigint AS died,
    sum(prevented)::bigint AS prevented, {", ".join(map(histogram, ALL_TIMES))}
"""
SUMS_OF_RESOURCES = f"""
SELECT resource, json_build_object({", ".join(map(_runs, RunState))}) AS outcomes,
    sum(throttled)::bigint AS throttled, sum(server_errors)::bigint AS server_errors,
    {histogram("runtime")}
"""
SUMS_OF_TENANTS = f"""
SELECT tenant, json_build_object({", ".join(map(_runs, RunState))}) AS outcomes,
    sum(slo_runs)::bigint AS slo_runs, sum(slo_met)::bigint AS slo_met,
    {histogram("waiting")}, {histogram("runtime")}
FROM django_jobs_tenanttotal
"""
