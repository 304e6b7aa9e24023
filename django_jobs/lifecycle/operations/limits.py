"""Operations on resources and tenants: pause, resume, and breakers by hand.

Each wakes all workers, which then look at the gates of blocked jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from ...domain.concurrency import name_problem
from ...exceptions import OperationRefused
from ...models import BreakerState
from ...models.database import fetch
from ...models.resource import LONGEST_TENANT
from ..notifying import GATES, notify_after_commit
from ..resource_outcomes import Change
from .jobs import Actor, Pause, demand, fields_of, name_of, signed

LONGEST_REASON = 300

PAUSE_RESOURCES = """
UPDATE django_jobs_resource
SET paused_at = clock_timestamp(), paused_reason = %(reason)s, paused_by = %(by)s,
    paused_until = %(until)s::timestamptz
WHERE name = ANY(%(names)s::text[]) AND paused_at IS NULL
RETURNING name
"""
RESUME_RESOURCES = """
UPDATE django_jobs_resource
SET paused_at = NULL, paused_reason = '', paused_by = '', paused_until = NULL
WHERE name = ANY(%(names)s::text[]) AND paused_at IS NOT NULL
  AND (NOT %(ended)s OR paused_until <= clock_timestamp())
RETURNING name
"""
# A tenant without a row gets one with the defaults, made at the moment of the pause.
PAUSE_TENANTS = """
INSERT INTO django_jobs_tenant AS known
    (name, weight, paused_at, paused_reason, paused_by, paused_until, created_at)
SELECT input.name, 1.0, clock.now, %(reason)s, %(by)s, %(until)s::timestamptz, clock.now
FROM unnest(%(names)s::text[]) AS input (name),
    (SELECT clock_timestamp() AS now OFFSET 0) AS clock
ORDER BY input.name
ON CONFLICT (name) DO UPDATE
    SET paused_at = excluded.paused_at, paused_reason = excluded.paused_reason,
        paused_by = excluded.paused_by, paused_until = excluded.paused_until
    WHERE known.paused_at IS NULL
RETURNING name
"""
# A row that the pause made and nobody edited says nothing. It would stay in the way of the setting:
# ``migrate`` changes no row that exists.
OF_THE_PAUSE = """created_at = paused_at AND weight = 1.0 AND max_concurrency IS NULL
    AND max_waiting IS NULL AND rate IS NULL AND slo_seconds IS NULL"""
RESUME_TENANTS = f"""
WITH gone AS (
    DELETE FROM django_jobs_tenant
    WHERE name = ANY(%(names)s::text[]) AND paused_at IS NOT NULL AND {OF_THE_PAUSE}
      AND (NOT %(ended)s OR paused_until <= clock_timestamp())
    RETURNING name
), resumed AS (
    UPDATE django_jobs_tenant
    SET paused_at = NULL, paused_reason = '', paused_by = '', paused_until = NULL
    WHERE name = ANY(%(names)s::text[]) AND paused_at IS NOT NULL AND NOT ({OF_THE_PAUSE})
      AND (NOT %(ended)s OR paused_until <= clock_timestamp())
    RETURNING name
)
SELECT name FROM gone UNION ALL SELECT name FROM resumed
"""
SET_BREAKER = """
UPDATE django_jobs_resource
SET breaker_state = %(state)s, breaker_changed_at = clock_timestamp(), breaker_reason = %(reason)s
WHERE name = ANY(%(names)s::text[]) AND breaker_state <> %(state)s
RETURNING name
"""


def pause_resources(names: Iterable[str], **given: Unpack[Pause]) -> list[str]:
    """Start no job that uses these resources. Ready or running jobs are not affected. Returns the
    names of the resources it paused."""
    return _change(PAUSE_RESOURCES, names, **fields_of(given, "django_jobs.pause_resource"))


def resume_resources(
    names: Iterable[str], *, actor: Actor = None, ended: bool = False
) -> list[str]:
    """Let jobs use these resources again; of ``ended``, those whose pause is over. Returns the
    names of those that were paused."""
    demand(actor, "django_jobs.pause_resource")
    return _change(RESUME_RESOURCES, names, ended=ended)


def pause_tenants(names: Iterable[str], **given: Unpack[Pause]) -> list[str]:
    """Start no job of these tenants. Jobs that are ready or running are not affected. Returns the
    names of the tenants it paused, with or without a row before. Raises ``OperationRefused``
    for what cannot be a name."""
    fields = fields_of(given, "django_jobs.pause_tenant")
    wanted = sorted(set(names))
    for name in wanted:
        if problem := name_problem(name, LONGEST_TENANT):
            raise OperationRefused(f"the name of a tenant {problem}")
    return _change(PAUSE_TENANTS, wanted, **fields)


def resume_tenants(names: Iterable[str], *, actor: Actor = None, ended: bool = False) -> list[str]:
    """Start jobs of these tenants again; of ``ended``, those whose pause is over. A row that the
    pause made, and that nobody edited, is deleted. Returns the names of those that were paused."""
    demand(actor, "django_jobs.pause_tenant")
    return _change(RESUME_TENANTS, names, ended=ended)


def open_breaker(
    names: Iterable[str], *, actor: Actor = None, reason: str = "", by: str = ""
) -> list[str]:
    """Open the breakers of these resources: no job that uses one starts. Returns the names of those
    that were not open."""
    return _set_breaker(names, BreakerState.OPEN, actor, reason, by)


def close_breaker(
    names: Iterable[str], *, actor: Actor = None, reason: str = "", by: str = ""
) -> list[str]:
    """Close the breakers of these resources. Returns the names of those that were open or half
    open."""
    return _set_breaker(names, BreakerState.CLOSED, actor, reason, by)


def _set_breaker(
    names: Iterable[str], state: BreakerState, actor: Actor, reason: str, by: str
) -> list[str]:
    demand(actor, "django_jobs.change_resource", reason)
    done = "opened" if state == BreakerState.OPEN else "closed"
    why = (reason or signed(done, name_of(actor), ""))[:LONGEST_REASON]
    changed = _change(SET_BREAKER, names, state=state.value, reason=why)
    for name in changed:
        Change(name, state, why).send(by=name_of(actor) or by)
    return changed


def _change(sql: str, names: Iterable[str], **parameters: Any) -> list[str]:
    changed = sorted(name for (name,) in fetch(sql, {"names": list(names), **parameters}))
    if changed:
        notify_after_commit(GATES)
    return changed
