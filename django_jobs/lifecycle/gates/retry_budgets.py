"""Retry budgets: retries beyond the share of a resource wait in their line, and others pass them.

What was started is a statistic on the row of the resource and no slot: nothing leaks if it is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...domain.admission import Line
from ...models.database import execute, fetch
from ...models.resource import FADED
from ..job_columns import ADMITTED, IN_LINE

COUNT = f"""
UPDATE django_jobs_resource AS resource
SET recent_starts = coalesce(recent_starts * {FADED}, 0) + input.starts,
    recent_retries = coalesce(recent_retries * {FADED}, 0) + input.retries,
    counted_at = statement_timestamp()
FROM unnest(%(names)s::text[], %(starts)s::float8[], %(retries)s::float8[])
    AS input (name, starts, retries)
WHERE resource.name = input.name
"""

# Of each line the first ones by rank, but not more retries than it may start.
ADMIT_WITHIN_BUDGET = f"""
WITH picked AS MATERIALIZED (
    SELECT next.id
    FROM unnest(%(lines)s::text[], %(counts)s::integer[], %(retries)s::integer[])
        AS line (gates, count, retries)
    CROSS JOIN LATERAL (
        SELECT id FROM (
            SELECT * FROM (
                SELECT job.id, job.rank FROM django_jobs_job_live AS job
                WHERE {IN_LINE}
                  AND job.failures = 0
                ORDER BY job.gates, job.rank, job.id
                LIMIT line.count
                FOR NO KEY UPDATE SKIP LOCKED) AS first_attempt
            UNION ALL
            SELECT * FROM (
                SELECT job.id, job.rank FROM django_jobs_job_live AS job
                WHERE {IN_LINE}
                  AND job.failures > 0
                ORDER BY job.gates, job.rank, job.id
                LIMIT least(line.count, line.retries)
                FOR NO KEY UPDATE SKIP LOCKED) AS retry
        ) AS either
        ORDER BY rank, id LIMIT line.count
    ) AS next
)
UPDATE django_jobs_job_live AS job SET {ADMITTED}
WHERE job.id = ANY(ARRAY(SELECT id FROM picked))
RETURNING job.gates, job.queue, job.failures > 0
"""


@dataclass(slots=True)
class RetryBudgets:
    """How many retries each resource with a budget may still start, and what it started."""

    left: dict[str, int] = field(default_factory=dict)
    _starts: Counter[str] = field(default_factory=Counter)
    _retries: Counter[str] = field(default_factory=Counter)

    def limits(self, line: Line) -> bool:
        """Whether a resource of the line has a budget."""
        return not self.left.keys().isdisjoint(line.gates.resources)

    def allows(self, line: Line) -> bool:
        """Whether a retry of the line may start."""
        return all(self.left.get(name, 1) > 0 for name in line.gates.resources)

    def admit(
        self, lines: Mapping[str, Line], grants: Mapping[str, int], known: Mapping[str, str]
    ) -> list[tuple[str, str]]:
        """Make jobs of these lines ready, of ``known`` types, up to the count granted to each.
        Returns the gates and the queue of each job. What is left of a budget is divided between its
        lines; each of them uses a resource that has one."""
        waiting = Counter(name for text in grants for name in lines[text].gates.resources)
        left = dict(self.left)
        retries = []
        for text, count in grants.items():
            names = [name for name in lines[text].gates.resources if name in left]
            allowed = min(count, *(-(-left[name] // waiting[name]) for name in names))
            retries.append(allowed)
            for name in names:
                left[name] -= allowed
                waiting[name] -= 1
        granted = {"lines": list(grants), "counts": list(grants.values()), "retries": retries}
        rows = fetch(ADMIT_WITHIN_BUDGET, {**granted, **known})
        for text, _, is_retry in rows:
            for name in lines[text].gates.resources:
                if name in self.left:
                    self._starts[name] += 1
                    self._retries[name] += is_retry
                    self.left[name] -= is_retry
        return [(text, queue) for text, queue, _ in rows]

    def save(self) -> None:
        if self._starts:
            names = list(self._starts)
            starts, retries = list(self._starts.values()), [self._retries[name] for name in names]
            execute(COUNT, {"names": names, "starts": starts, "retries": retries})
