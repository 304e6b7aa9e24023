"""Samples the backlogs of all queues once a minute, by one worker of the fleet."""

from __future__ import annotations

from django.db import transaction

from ..lifecycle.backlog_samples import Past, Sample, may_sample, past, ready_jobs, store
from ..models.database import jobs_connection

EVERY_SECONDS = 60.0
RECENT_SECONDS = 0.7 * EVERY_SECONDS


def sample_backlogs() -> int:
    """Store the ready jobs of each queue with the forecast for them, unless another worker has;
    return how many."""
    with transaction.atomic(using=jobs_connection().alias):
        if not may_sample(RECENT_SECONDS):
            return 0
        known = past()
        samples = [
            Sample(queue, ready, one.running, one.runs, _forecast(one, ready))
            for queue, ready in ready_jobs().items()
            if (one := known.get(queue))
        ]
        if samples:
            store(samples)
        return len(samples)


def _forecast(known: Past, ready: int | None) -> float | None:
    return None if ready is None else known.drain_seconds(ready)
