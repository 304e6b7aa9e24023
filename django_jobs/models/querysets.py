"""What is asked about jobs again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from ..domain.states import LIVE, JobState

if TYPE_CHECKING:
    from .job import DeadLetter, Job  # noqa: F401 — ruff does not see the name in the base class


class JobQuerySet(models.QuerySet["Job"]):
    """Reads jobs. Writes go through ``django_jobs.lifecycle``."""

    def live(self) -> JobQuerySet:
        """Jobs that are still to run, or running."""
        return self.filter(status__in=LIVE)

    def dead(self) -> JobQuerySet:
        """Dead letters."""
        return self.filter(status=JobState.DEAD)

    def holding_key(self, queue: str, key: str) -> JobQuerySet:
        """The live job, if any, that holds the idempotency ``key`` in ``queue``."""
        return self.live().filter(queue=queue, idempotency_key=key)


class DeadLetterManager(models.Manager["DeadLetter"]):
    """Dead jobs only."""

    def get_queryset(self) -> models.QuerySet[DeadLetter]:
        return super().get_queryset().filter(status=JobState.DEAD)
