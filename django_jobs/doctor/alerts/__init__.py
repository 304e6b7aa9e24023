"""Sends alerts of what the other readers find wrong.

situations  What is wrong now, as the doctor, the metrics and ``jobstatus`` find it
sending     One message, by mail, to a webhook or to a function
watching    Which alerts are open, and who sends them
"""

from ...conf import conf
from ...domain.maintenance import MaintenanceTask

TURN_SECONDS = 2.0
"""How often is looked whether there is something to send, or something was sent."""


def alerting() -> list[MaintenanceTask]:
    """The maintenance task of workers, if ``ALERTS`` is set."""
    if not conf().alerts:
        return []
    from .watching import Alerting

    run_once = Alerting().run_once
    return [MaintenanceTask(name="alerts", every=TURN_SECONDS, batch=2, run_once=run_once)]
