"""The maintenance tasks that every worker has."""

from __future__ import annotations

from .quarantine import quarantining_task
from .reaping import reaping_task
from .retention import retention_task
from .task import MaintenanceTask


def maintenance_tasks() -> list[MaintenanceTask]:
    """New instances of all maintenance tasks. Each instance remembers where it stopped."""
    return [reaping_task(), retention_task(), quarantining_task()]
