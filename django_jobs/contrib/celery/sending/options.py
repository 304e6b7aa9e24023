"""The options of ``apply_async`` as those of a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery.utils.time import maybe_make_aware
from dateutil.parser import isoparse
from django.utils import timezone

from ....exceptions import EnqueueError
from ..messages.requests import PROPERTIES, SHOWN

INSTEAD = {
    "link": "use chain(this.s(), then.s())",
    "link_error": "use a step with when='failed' of a django_jobs.Workflow",
    "chord": "use celery.chord(header, body)",
    "chain": "use celery.chain(...)",
    "stamped_headers": "pass headers=",
}
"""Options that no row can have, and what to use."""

OF_THE_BROKER = {
    *("producer", "publisher", "connection", "router", "retry", "retry_policy", "origin"),
    *("compression", "delivery_mode", "mandatory", "immediate", "replaced_task_nesting"),
    *("route_name", "serializer", "retries", "exchange_type"),
}
"""Options that concern the message, and mean nothing for a row."""
KNOWN = (
    OF_THE_BROKER
    | PROPERTIES
    | SHOWN
    | {
        *("countdown", "eta", "expires", "queue", "exchange", "routing_key", "priority"),
        *("time_limit", "soft_time_limit", "headers", "shadow", "ignore_result"),
        *("root_id", "parent_id", "group_id", "group_index"),
    }
)


def check(name: str, options: Mapping[str, Any]) -> None:
    """Raise :class:`EnqueueError` for an option that cannot be kept."""
    for option, instead in INSTEAD.items():
        if options.get(option):
            raise EnqueueError(f"{name}: {option} is not possible; {instead}")
    if unknown := sorted(options.keys() - KNOWN - INSTEAD.keys()):
        raise EnqueueError(
            f"{name}: {', '.join(unknown)}: no such option of a job; pass headers= for what the "
            "task shall read"
        )
    serializer = options.get("serializer", "json")
    if serializer != "json":
        raise EnqueueError(
            f"{name}: serializer is json, not {serializer}: a payload is JSON; pass primary keys, "
            "and load the objects in the task"
        )


def delay_of(options: Mapping[str, Any]) -> float | None:
    """The seconds of a ``countdown``; None without one. It prevails over an ``eta``."""
    countdown = options.get("countdown")
    return max(float(countdown), 0.0) if countdown else None


def due_of(app: Any, options: Mapping[str, Any]) -> datetime | None:
    """The ``eta``; None for at once."""
    eta = options.get("eta")
    return moment_of(app, eta) if eta else None


def moment_of(app: Any, given: Any) -> datetime:
    """A point in time: seconds from now, a datetime, or ISO text. A naive one is in the time zone
    of the app, as in Celery."""
    if isinstance(given, int | float):
        return timezone.now() + timedelta(seconds=given)
    parsed = isoparse(given) if isinstance(given, str) else given
    aware: datetime = maybe_make_aware(parsed, app.timezone)
    return aware
