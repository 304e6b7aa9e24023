"""Runs the jobs of tasks in the test's process, retries too."""

from __future__ import annotations

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Run
from django_jobs.testing import run_jobs


def run_all() -> list[Run]:
    """Run jobs until none is left, as if the time of all that are scheduled had come."""
    runs = run_jobs()
    while due := [job.pk for job in Job.objects.filter(status="scheduled")]:
        job_operations.run_now(due)
        runs += run_jobs()
    return runs
