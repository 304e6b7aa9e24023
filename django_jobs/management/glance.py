"""A snapshot as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics.snapshot import MOST_COUNTED, Snapshot
from .base import counted

QUEUE_HEADS = ("QUEUE", "STATE", "READY", "OLDEST", "RUNNING", "LIMIT", "SCHEDULED", "DEAD")
WORKER_HEADS = ("WORKER", "ID", "STATE", "HOST", "PID", "THREADS", "HELD", "HEARTBEAT", "QUEUES")


def glance(snapshot: Snapshot) -> str:
    """Queues, then workers, then what nobody can run."""
    queues = [
        (
            queue.name,
            "paused" if queue.paused else "open",
            _count(queue.ready),
            _age(queue.oldest_ready_seconds),
            _count(queue.running),
            "-" if queue.max_concurrency is None else str(queue.max_concurrency),
            _count(queue.scheduled),
            _count(queue.dead),
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
            str(worker.threads),
            str(worker.held),
            f"{_age(worker.heartbeat_seconds)} ago",
            ",".join(worker.queues),
        )
        for worker in snapshot.workers
    ]
    parts = [
        _table(QUEUE_HEADS, queues),
        _table(WORKER_HEADS, workers) if workers else "No worker is alive.",
    ]
    unknown = [
        f"{counted(one.ready, 'ready job')} of a type no live worker knows: {one.job_type}"
        for one in snapshot.unknown_job_types
    ]
    if unknown:
        parts.append("\n".join(unknown))
    return "\n\n".join(parts)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (heads, *rows))
    return "\n".join(lines)


def _count(count: int) -> str:
    return f"{count}+" if count >= MOST_COUNTED else str(count)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
