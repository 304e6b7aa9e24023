"""Examines database, settings and jobs, and says what is wrong and what to do."""

from __future__ import annotations

from ..conf import conf
from ..domain.maintenance import MaintenanceTask

TURN_SECONDS = 2.0
"""How often is looked whether there is something to send, or something was sent."""


def alerting() -> list[MaintenanceTask]:
    """The maintenance task of workers, if ``ALERTS`` is set."""
    if not conf().alerts:
        return []
    from .alerts import Alerting

    run_once = Alerting().run_once
    return [MaintenanceTask(name="alerts", every=TURN_SECONDS, batch=2, run_once=run_once)]
