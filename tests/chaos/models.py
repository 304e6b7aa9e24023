"""What handlers leave in the jobs' database."""

from __future__ import annotations

from django.db import models


class Mark(models.Model):
    """One transactional effect of a job."""

    job_id = models.BigIntegerField()

    def __str__(self) -> str:
        return f"job {self.job_id}"
