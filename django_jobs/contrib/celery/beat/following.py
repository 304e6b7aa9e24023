"""The job that follows the rows of django-celery-beat, where that is installed."""

from __future__ import annotations

from ....api import job
from ....domain.numbers import HIGHEST_PRIORITY
from .importing import FOLLOW
from .importing import follow as import_changes
from .periodic_task import Translation


@job(name=FOLLOW, priority=HIGHEST_PRIORITY, delivery="at_most_once")
def follow(job_types: dict[str, str], queues: dict[str, str], redis: bool, database: str) -> None:
    """Import the rows that have changed; the next look is soon, so nothing is repeated."""
    translation = Translation(job_types=job_types, queues=queues, redis=redis)
    import_changes(translation, database)
