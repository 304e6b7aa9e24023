"""What a schedule does about late due times and live jobs. Models need it without the rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import inf

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of intervals without one, so that every hour means on the hour."""

ON_TIME_SECONDS = 60.0
"""A due time that a worker sees within this time is not missed."""


def in_utc(at: datetime) -> datetime:
    """The same instant in UTC. Within another zone, differences and comparisons ignore which pass
    of a repeated hour is meant (PEP 495). A naive time stays as it is, and so does one that Python
    cannot represent in UTC."""
    try:
        return at if at.utcoffset() is None else at.astimezone(UTC)
    except OverflowError:
        return at


class Overlap(StrEnum):
    """What to do when a due time comes while a job of the schedule is still live."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    ALLOW = "allow"
    CANCEL = "cancel"


class CatchUp(StrEnum):
    """Which of the missed due times still make a job."""

    LATEST = "latest"
    SKIP = "skip"
    AT_MOST = "at_most"
    WINDOW = "window"


MOST_AT_ONCE = 100
"""Jobs that a schedule makes at one time, at most, by any policy."""

LIMITS = {CatchUp.AT_MOST: (1, MOST_AT_ONCE), CatchUp.WINDOW: (ON_TIME_SECONDS, inf)}
"""The least and the most that the ``limit`` of a policy may be: jobs, and seconds."""

MOST_MOVED = timedelta(hours=12)
"""How far back to look for a due time that is earlier by other time zone tables. They have moved
clocks by up to three hours, and by a day where the date line moved. In half a day a daily rule that
was edited since has no due time of before."""


class TickState(StrEnum):
    """The outcome of a due time."""

    FIRED = "fired"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED_LATE = "skipped_late"
    SKIPPED = "skipped"
    SUPPRESSED = "suppressed"
