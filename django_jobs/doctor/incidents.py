"""What was stopped for a reason, and may have been forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

from ..lifecycle.backlog import MOST_COUNTED as MOST_BLOCKED
from ..lifecycle.gate_limits import waiting_up_to
from ..lifecycle.pausing import PAUSES
from ..metrics.limits import Usage, read_usages
from ..metrics.unclaimable import FIRST_AT_GATES, QUARANTINES, QuarantineSnapshot
from .findings import Finding, Reader, Statement, age, found, jobs_wait
from .work import MOST_COUNTED, read_queues

FORGOTTEN_SECONDS = 3_600.0
"""A pause or a quarantine that holds back jobs for longer may have been forgotten."""
STUCK_SECONDS = 600.0
"""How long one job may hold a key behind which a thousand wait."""

# Jobs in hand are few. Each counts its line by the index, up to the bound.
KEYS = Statement(
    f"""
SELECT holder.job, holder.job_type, holder.key, holder.seconds, line.waiting
FROM (
    SELECT id AS job, job_type, concurrency_key AS key, gates,
        extract(epoch FROM clock_timestamp() - claimed_at)::float8 AS seconds
    FROM django_jobs_job_live
    WHERE status = 'running' AND concurrency_key IS NOT NULL
      AND claimed_at <= clock_timestamp() - make_interval(secs => %(old)s)
    ORDER BY claimed_at
    LIMIT 50) AS holder
CROSS JOIN LATERAL (SELECT {waiting_up_to("%(most)s", "holder.gates")} AS waiting) AS line
WHERE line.waiting >= %(most)s
LIMIT 20
""",
    lambda: {"old": STUCK_SECONDS, "most": MOST_COUNTED},
)
PAUSED = Statement(
    f"""
SELECT kind, name, reason, extract(epoch FROM clock_timestamp() - since)::float8 AS seconds
FROM ({PAUSES}) AS paused
WHERE kind IN ('resource', 'tenant')
  AND since <= clock_timestamp() - make_interval(secs => %(old)s)
ORDER BY seconds DESC
LIMIT 20
""",
    lambda: {"old": FORGOTTEN_SECONDS},
)
QUARANTINED = Statement(QUARANTINES, lambda: {"most": MOST_BLOCKED, **FIRST_AT_GATES})
# A breaker that has no job to try with stays half open.
BREAKERS = Statement(
    """
SELECT name, breaker_state AS state, breaker_reason AS reason,
    extract(epoch FROM clock_timestamp() - breaker_changed_at)::float8 AS seconds
FROM django_jobs_resource
WHERE breaker_state <> 'closed'
  AND breaker_changed_at <= clock_timestamp()
      - make_interval(secs => greatest(%(old)s::float8, 2 * least(breaker_open_for, 1e9)))
ORDER BY breaker_changed_at
LIMIT 20
""",
    lambda: {"old": STUCK_SECONDS},
)


def examine_keys(read: Reader) -> Iterator[Finding]:
    """Jobs that hold a key for long, with a long line behind them."""
    for row in read(KEYS):
        yield found(
            "D321",
            f"Job {row['job']} ({row['job_type']}) has held the concurrency key {row['key']!r} for "
            f"{age(row['seconds'])}; at least {row['waiting']:,} jobs wait behind it.",
            "Look at the job in the admin, and cancel it if it is stuck. A timeout= of its type "
            "ends such a job by itself.",
            **row,
        )


def examine_pauses(read: Reader) -> Iterator[Finding]:
    """Queues, resources, tenants and job types that hold back jobs for long."""
    for queue in read_queues(read).queues:
        if queue.waiting and (queue.paused_seconds or 0) >= FORGOTTEN_SECONDS:
            why = f" ({queue.paused_reason})" if queue.paused_reason else ""
            yield found(
                "D322",
                f"The queue {queue.name!r} has been paused for {age(queue.paused_seconds or 0)}"
                f"{why}, and {jobs_wait(queue.waiting, MOST_COUNTED)} in it.",
                "Resume it in the admin when its reason is gone.",
                queue=queue.name,
                seconds=queue.paused_seconds,
                waiting=queue.waiting,
            )
    yield from _paused_gates(read)
    for one in (QuarantineSnapshot(**row) for row in read(QUARANTINED)):
        if one.blocked and one.since_seconds >= FORGOTTEN_SECONDS:
            yield found(
                "D324",
                f"{one.job_type} has been quarantined for {age(one.since_seconds)}"
                f"{f' ({one.reason})' if one.reason else ''}, and blocks {one.blocked_text} "
                f"{'job' if one.blocked_text == '1' else 'jobs'}.",
                "Correct the handler, and lift the quarantine:",
                f"manage.py jobquarantine lift {quote(one.job_type)}",
                job_type=one.job_type,
                seconds=one.since_seconds,
                blocked=one.blocked,
            )


def _paused_gates(read: Reader) -> Iterator[Finding]:
    for row, usage in _with_waiting([(row["kind"], row) for row in read(PAUSED)]):
        why = f" ({row['reason']})" if row["reason"] else ""
        yield found(
            "D322",
            f"The {row['kind']} {row['name']!r} has been paused for {age(row['seconds'])}"
            f"{why}, and {_jobs_wait(usage)} for it.",
            "Resume it when its reason is gone:",
            f"manage.py joblimit resume {row['kind']} {quote(row['name'])}",
            kind=row["kind"],
            name=row["name"],
            seconds=row["seconds"],
            waiting=usage.waiting,
        )


def examine_breakers(read: Reader) -> Iterator[Finding]:
    """Circuit breakers that have not been closed for long, and hold back jobs."""
    for row, usage in _with_waiting([("resource", row) for row in read(BREAKERS)]):
        state = row["state"].replace("_", " ")
        why = f" ({row['reason']})" if row["reason"] else ""
        yield found(
            "D323",
            f"The breaker of the resource {row['name']!r} has been {state} for "
            f"{age(row['seconds'])}{why}, and {_jobs_wait(usage)} for it.",
            "Look at what it guards, and close the breaker when that works again:",
            f"manage.py joblimit close {quote(row['name'])}",
            resource=row["name"],
            state=row["state"],
            seconds=row["seconds"],
            waiting=usage.waiting,
        )


def _with_waiting(
    rows: Sequence[tuple[str, dict[str, Any]]],
) -> Iterator[tuple[dict[str, Any], Usage]]:
    """Those of the resources and tenants, by kind, for which jobs wait."""
    if not rows:
        return
    names = {(kind, row["name"]) for kind, row in rows}
    usages = read_usages(
        lambda gates: (
            ("tenant", gates.tenant) in names
            or any(("resource", name) in names for name in gates.resources)
        )
    )
    for kind, row in rows:
        of_kind = usages.resources if kind == "resource" else usages.tenants
        usage = of_kind.get(row["name"], Usage())
        if usage.waiting:
            yield row, usage


def _jobs_wait(usage: Usage) -> str:
    return jobs_wait(usage.waiting, usage.waiting + (not usage.more_wait))
