"""Settle the jobs of lost workers."""

from __future__ import annotations

from ..conf import conf
from ..lifecycle.reaping import BATCH, reap
from ..lifecycle.signalling import send_job_signals
from .task import MaintenanceTask


def reaping_task() -> MaintenanceTask:
    """The maintenance task, every ``SWEEP_SECONDS``. That setting bounds how late a job of a lost
    worker is taken over."""
    return MaintenanceTask(
        name="reaping", every=conf().sweep_seconds, batch=BATCH, run_once=reap_once
    )


def reap_once() -> int:
    """Settle one batch of abandoned jobs and send their signals; return how many."""
    settled = reap()
    send_job_signals(settled)
    return len(settled)
