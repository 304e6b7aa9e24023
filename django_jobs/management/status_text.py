"""Renders a snapshot as text."""

from __future__ import annotations

from collections.abc import Sequence

from ..lifecycle.backlog import MOST_COUNTED
from ..metrics.forecast import Forecast, QueueForecast
from ..metrics.limits import LimitSnapshot, ResourceSnapshot, TenantSnapshot, at_least, rate_text
from ..metrics.schedules import MAX_LAG, SchedulesSnapshot
from ..metrics.slo import MOST_LATE, SloSnapshot
from ..metrics.snapshot import QueueSnapshot, Snapshot, stuck_jobs
from ..metrics.unclaimable import QuarantineSnapshot, capped
from ..models.querysets import ScheduleState
from ..models.queue import SloSince
from ..models.worker import pools_text, slots_text
from .base import counted, table
from .status_check import COUNTED_TOGETHER

QUEUE_HEADS = (
    *("QUEUE", "STATE", "READY", "OLDEST", "RUNNING", "LIMIT", "SCHEDULED", "DEAD", "PRESSURE"),
)
ALWAYS_COUNTED = (ScheduleState.ON, ScheduleState.PAUSED, ScheduleState.ERROR)
"""States of schedules that are shown even if no schedule is in them."""
RESOURCE_HEADS = ("RESOURCE", "STATE", "TAKEN", "LIMIT", "WAITING", "RATE", "REASON")
TENANT_HEADS = ("TENANT", "STATE", "TAKEN", "LIMIT", "WAITING", "WEIGHT", "REASON")
MOST_TENANTS = 20
SLO_HEADS = ("QUEUE", "WITHIN", "TARGET", "IN TIME, LAST HOUR", "LAST DAY", "LATE NOW")
FORECAST_HEADS = ("QUEUE", "ARRIVE/S", "CLAIM/S", "END/S", "DRAINED", "ERROR")
NONE = "-"
WORKER_HEADS = ("WORKER", "ID", "STATE", "HOST", "PID", "THREADS", "CLAIMED", "HEARTBEAT", "QUEUES")


def render_status(snapshot: Snapshot) -> str:
    """Queues, workers, schedules, then jobs that no worker can run, then pauses and quarantines."""
    more = {
        state: "+" if sum(getattr(one, state) for one in snapshot.queues) >= MOST_COUNTED else ""
        for state in COUNTED_TOGETHER
    }
    queues = [
        (
            queue.name,
            "paused" if queue.paused else "open",
            capped(queue.ready),
            age(queue.oldest_due_seconds),
            f"{queue.running - queue.prefetched}{more['running']}",
            "-" if queue.max_concurrency is None else str(queue.max_concurrency),
            f"{queue.scheduled}{more['scheduled']}",
            f"{queue.dead}{more['dead']}",
            queue.pressure or "-",
        )
        for queue in snapshot.queues
    ]
    workers = [
        (
            worker.name,
            str(worker.id),
            "no heartbeat" if worker.lease_seconds < 0 else worker.status,
            worker.host,
            str(worker.pid),
            slots_text(worker.threads, worker.async_slots),
            str(worker.claimed),
            f"{age(worker.heartbeat_seconds)} ago",
            pools_text(worker.pools) or ",".join(worker.queues),
        )
        for worker in snapshot.workers
    ]
    parts = [
        table(QUEUE_HEADS, queues),
        table(WORKER_HEADS, workers) if workers else "No worker is alive.",
    ]
    if snapshot.objectives:
        parts.append(table(SLO_HEADS, list(map(_objective, snapshot.objectives))))
    if waiting := [one for one in snapshot.forecast.queues if one.ready]:
        parts.append(table(FORECAST_HEADS, list(map(_forecast, waiting))))
    if snapshot.forecast.running:
        parts.append(_deploy(snapshot.forecast))
    if line := _schedules(snapshot.schedules):
        parts.append(line)
    if stuck := stuck_jobs(snapshot):
        parts.append("\n".join(stuck))
    if paused := [queue for queue in snapshot.queues if queue.paused]:
        parts.append("\n".join(map(_pause, paused)))
    if snapshot.quarantines:
        parts.append("\n".join(map(_quarantine, snapshot.quarantines)))
    if limits := render_limits(snapshot.resources, snapshot.tenants):
        parts.append(limits)
    return "\n\n".join(parts)


def render_limits(resources: Sequence[ResourceSnapshot], tenants: Sequence[TenantSnapshot]) -> str:
    """The resources, and the 20 tenants with the most waiting jobs; empty if there are none."""
    parts = []
    if resources:
        rows = [
            (*_limit(one), rate_text(one.rate, one.rate_seconds), _reason(one)) for one in resources
        ]
        parts.append(table(RESOURCE_HEADS, rows))
    if tenants:
        first = [
            (*_limit(one), f"{one.weight:g}", one.paused_reason) for one in tenants[:MOST_TENANTS]
        ]
        parts.append(table(TENANT_HEADS, first))
    if len(tenants) > MOST_TENANTS:
        parts[-1] += f"\nand {counted(len(tenants) - MOST_TENANTS, 'more tenant')}"
    return "\n\n".join(parts)


def _limit(one: LimitSnapshot) -> tuple[str, ...]:
    return (
        one.name,
        one.state.replace("_", " "),
        str(one.taken),
        "-" if one.limit is None else str(one.limit),
        at_least(one.waiting, one.more_wait, one.max_waiting),
    )


def _reason(one: ResourceSnapshot) -> str:
    if one.paused_reason or one.breaker == "closed":
        return one.paused_reason
    return one.breaker_reason


def _pause(queue: QueueSnapshot) -> str:
    ready = f"{capped(queue.ready)} ready" if queue.ready else "none ready"
    why = f": {queue.paused_reason}" if queue.paused_reason else ""
    by = f" by {queue.paused_by}" if queue.paused_by else ""
    return f"Paused{by} {age(queue.paused_seconds)} ago, {ready}: {queue.name}{why}"


def _quarantine(snapshot: QuarantineSnapshot) -> str:
    some = snapshot.blocked or snapshot.more_blocked
    blocked = f"{snapshot.blocked_text} blocked" if some else "no blocked job"
    why = f": {snapshot.reason}" if snapshot.reason else ""
    by = f" by {snapshot.by}" if snapshot.by else ""
    return f"Quarantined{by} {age(snapshot.since_seconds)} ago, {blocked}: {snapshot.job_type}{why}"


def _forecast(one: QueueForecast) -> tuple[str, ...]:
    arrived, claimed = one.arrived_per_second, one.claimed_per_second
    if one.drain_seconds is not None:
        drained = f"in {age(one.drain_seconds)}"
    else:
        drained = "stands still" if arrived == claimed else "grows"
    return (
        one.queue,
        *(
            NONE if rate is None else f"{rate:.1f}"
            for rate in (arrived, claimed, one.ended_per_second)
        ),
        NONE if arrived is None else drained,
        NONE if one.error_ratio is None else f"{one.error_ratio:.0%}",
    )


def _deploy(forecast: Forecast) -> str:
    jobs = counted(forecast.running, "running job")
    unknown = f", {forecast.unknown} of unknown length" if forecast.unknown else ""
    return f"A deploy waits {age(forecast.deploy_seconds)} for {jobs}{unknown}."


def _objective(one: SloSnapshot) -> tuple[str, ...]:
    """The share of jobs that started in time, with the burn rate."""
    windows = (
        NONE if window.ratio is None else f"{window.ratio:.2%} (burn rate {window.burn_rate:.1f})"
        for window in (one.hour, one.day)
    )
    late = capped(one.late, MOST_LATE)
    within = f"{one.seconds:g}s" + (" of ready" if one.since == SloSince.READY else "")
    return (one.queue, within, f"{one.target * 100:g}%", *windows, late)


def _schedules(snapshot: SchedulesSnapshot) -> str:
    """One line about the schedules; empty if there are none."""
    by_state = {state: getattr(snapshot, state) for state in ScheduleState}
    if not any(by_state.values()):
        return ""
    counts = [
        f"{capped(count)} {state}"
        for state, count in by_state.items()
        if count or state in ALWAYS_COUNTED
    ]
    parts = [f"Schedules: {', '.join(counts)}"]
    if snapshot.seen_seconds is not None and snapshot.seen_seconds <= MAX_LAG:
        parts.append(f"looked at {snapshot.seen_seconds:.1f} s ago")
    if snapshot.overdue and snapshot.overdue_seconds is not None:
        parts.append(f"most overdue by {snapshot.overdue_seconds:.0f} s")
    if snapshot.unseen_seconds is None or snapshot.unseen_seconds > MAX_LAG:
        if snapshot.seen_seconds is None:
            parts[-1] += ". No worker looks at schedules."
        else:
            parts[-1] += f". No worker has looked at schedules for {snapshot.seen_seconds:.0f} s."
    return "; ".join(parts)


def age(seconds: float | None) -> str:
    """``90s``, ``2h``, ``3d``; a dash for None."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
