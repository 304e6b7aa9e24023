"""The maintenance tasks that every worker has."""

from __future__ import annotations

from .quarantine import quarantining_task
from .reaping import reaping_task
from .retention import retention_task
from .task import MaintenanceTask


def maintenance_tasks() -> list[MaintenanceTask]:
    """All maintenance tasks, made anew: each remembers for itself where it stopped."""
    return [reaping_task(), retention_task(), quarantining_task()]
