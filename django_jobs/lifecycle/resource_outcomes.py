"""How attempts ended that used a resource with a circuit breaker.

Written after their settle, for the admission, which counts them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from ..domain.breaker import BreakerState
from ..models.database import execute, fetch, jobs_connection
from ..signals import emit
from .job_columns import ClaimedJob

RECENT_SECONDS = 1.0

# An operator may have opened the breaker of a resource that has no rule for it.
STATES = """
SELECT name, breaker_state, date_part('epoch', breaker_changed_at) FROM django_jobs_resource
WHERE breaker_failures IS NOT NULL OR breaker_state <> 'closed'
"""
RECORD = """
INSERT INTO django_jobs_resourceoutcome (resource, failed, happened_at)
SELECT input.resource, input.failed, clock_timestamp()
FROM unnest(%(resources)s::text[], %(failed)s::boolean[]) AS input (resource, failed)
"""


@dataclass(frozen=True, slots=True)
class Change:
    """A breaker that an admission or an operator changed."""

    resource: str
    state: str
    reason: str

    def send(self, **by: str) -> None:
        """Send the event. ``by`` is the operator."""
        fields = {"resource": self.resource, "reason": self.reason, **by}
        match self.state:
            case BreakerState.OPEN:
                emit("breaker_opened", logging.WARNING, **fields)
            case BreakerState.HALF_OPEN:
                emit("breaker_half_opened", logging.INFO, **fields)
            case BreakerState.CLOSED:
                emit("breaker_closed", logging.INFO, **fields)


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a breaker, and when it changed to that, in epoch seconds of the database."""

    state: BreakerState
    since: float


_recent: dict[str, tuple[float, dict[str, Seen]]] = {}


def forget_recent() -> None:
    _recent.clear()


def seen_breakers(*, fresh: bool) -> Mapping[str, Seen]:
    """The breakers by the names of their resources; unless ``fresh``, those of a second ago if all
    were closed. A breaker is open for a second at least, so none of them is half open yet."""
    alias = jobs_connection().alias
    read_at, known = _recent.get(alias, (-inf, {}))
    now = time.monotonic()
    closed = all(one.state == BreakerState.CLOSED for one in known.values())
    if fresh or not closed or now - read_at > RECENT_SECONDS:
        rows = fetch(STATES, {})
        known = {name: Seen(BreakerState(state), since or -inf) for name, state, since in rows}
        _recent[alias] = now, known
    return known


def down_of(job: ClaimedJob, breakers: Mapping[str, Seen]) -> str:
    """The first resource of a job whose breaker is not closed; empty if there is none."""
    for name in job.resources:
        if name in breakers and breakers[name].state != BreakerState.CLOSED:
            return name
    return ""


def record(ended: Iterable[tuple[ClaimedJob, bool]], breakers: Mapping[str, Seen]) -> None:
    """Write how attempts ended: jobs, and whether each failed.

    An attempt that was claimed before the last change of a breaker says nothing about what
    followed. An open breaker counts nothing, and a closed one only failures.
    """
    rows = [
        (name, failed)
        for job, failed in ended
        for name in job.resources
        if (breaker := breakers.get(name)) is not None
        and breaker.since <= job.claimed_at
        and breaker.state != BreakerState.OPEN
        and (failed or breaker.state == BreakerState.HALF_OPEN)
    ]
    if rows:
        resources, failed = zip(*rows, strict=True)
        execute(RECORD, {"resources": list(resources), "failed": list(failed)})
