"""The situations of which alerts are sent, and where they are sent to."""

from __future__ import annotations

from urllib.parse import urlsplit

HOLD_SECONDS = {
    "dead_jobs": 0.0,
    "late_schedule": 120.0,
    "unserved_queue": 300.0,
    "failed_compensation": 0.0,
    "open_breaker": 120.0,
    "burning_objective": 120.0,
}
"""How long each situation has to last before it is sent: as ``for:`` of the alert rules."""
AT_MOST_PER_HOUR = 20
MAILTO = "mailto:"
WEB = ("https://", "http://")


def shown_target(to: str) -> str:
    """Where an alert is sent, without what may be secret: the path of a webhook often is."""
    if not to.startswith(WEB):
        return to.removeprefix(MAILTO)
    parts = urlsplit(to)
    return f"{parts.scheme}://{parts.hostname}/…"
