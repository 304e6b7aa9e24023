"""Circuit breakers: the admission counts how attempts ended, and changes what it is time to change.

So a change needs no leader, and is made before anything is admitted.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from ...domain.breaker import Breaker, BreakerState, change
from ...models.database import execute, fetch
from ..resource_outcomes import Change

# Failures that occurred before the last change are not counted. The counts stop where the rule is
# met, so that a million rows cost no more than a few.
COUNTED = """
SELECT resource.name, resource.breaker_state, resource.breaker_failures, resource.breaker_window,
    resource.breaker_open_for,
    date_part('epoch', statement_timestamp() - resource.breaker_changed_at),
    (SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_resourceoutcome AS outcome
        WHERE outcome.resource = resource.name AND outcome.failed
          AND outcome.happened_at > greatest(resource.breaker_changed_at,
              CASE resource.breaker_state WHEN 'closed' THEN statement_timestamp()
                  - make_interval(secs => least(resource.breaker_window, 1e9)) END)
        LIMIT coalesce(resource.breaker_failures, 1)) AS failure),
    CASE resource.breaker_state WHEN 'half_open' THEN (
        SELECT count(*) FROM django_jobs_resourceoutcome AS outcome
        WHERE outcome.resource = resource.name AND NOT outcome.failed
          AND outcome.happened_at > resource.breaker_changed_at) ELSE 0 END
FROM django_jobs_resource AS resource
WHERE resource.breaker_failures IS NOT NULL OR resource.breaker_state <> 'closed'
ORDER BY resource.name
"""
# What hangs since before the dependency failed must not hold up those that try whether it is back.
HANGING = """
SELECT resource.name, count(*)
FROM django_jobs_resource AS resource
JOIN django_jobs_job_live AS job ON job.resources ? resource.name
WHERE resource.breaker_state = 'half_open' AND job.resources IS NOT NULL
  AND job.status IN ('ready', 'running') AND job.status = 'running'
  AND job.claimed_at < resource.breaker_changed_at
GROUP BY resource.name
"""
# An operator may have changed it since the count.
CHANGE = """
UPDATE django_jobs_resource
SET breaker_state = %(state)s, breaker_changed_at = clock_timestamp(), breaker_reason = %(reason)s
WHERE name = %(name)s AND breaker_state = %(from)s
RETURNING name
"""


# The clock of the database went back, as after a failover. No token would come, no retry be
# forgotten and no breaker change until it is there again.
SET_BACK = """
UPDATE django_jobs_resource SET refilled_at = least(refilled_at, clock_timestamp()),
    counted_at = least(counted_at, clock_timestamp()),
    breaker_changed_at = least(breaker_changed_at, clock_timestamp())
WHERE greatest(refilled_at, counted_at, breaker_changed_at) > clock_timestamp()
  AND name <> ALL(%(locked)s::text[])
"""


def change_all(locked: Collection[str] = ()) -> list[Change]:
    """Change the breakers for which it is time, but for those of the resources that are ``locked``.
    Only one admission at a time may call it."""
    rows = fetch(COUNTED, {})
    if any(row[5] is not None and row[5] < 0 for row in rows):
        set_back(locked)
        rows = fetch(COUNTED, {})
    changes = []
    for name, state, most, window, open_for, seconds, failures, successes in rows:
        breaker = Breaker(
            state=BreakerState(state),
            most=most,
            window=window,
            open_for=open_for,
            seconds=inf if seconds is None else seconds,
            failures=failures,
            successes=successes,
        )
        changed = change(breaker)
        if changed is None or name in locked:
            continue
        after, reason = changed
        parameters = {"name": name, "from": state, "state": after.value, "reason": reason}
        if fetch(CHANGE, parameters):
            changes.append(Change(name, after, reason))
    return changes


def set_back(locked: Collection[str] = ()) -> None:
    """Let what resources count from begin now, where it lies in the future, but for those that are
    ``locked``."""
    execute(SET_BACK, {"locked": list(locked)})


def hanging() -> dict[str, int]:
    """How many jobs of each half open breaker began before it was half open."""
    return dict(fetch(HANGING, {}))
