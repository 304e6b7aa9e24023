"""Writes what the function ``django_jobs_enqueue`` has to know about job types."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from .. import registry
from ..conf import conf
from ..models import JobTypeDefaults
from ..models.database import has_todays_columns
from .job_type import JobType
from .steps import takes_any

AS_DECLARED = ("queue", "version", "priority", "max_attempts", "max_crashes", "timeout", "max_age")


def synchronise(alias: str) -> None:
    """Write the registered job types, remove all others. Several processes may call it at once."""
    if not has_todays_columns(JobTypeDefaults, alias):
        return  # migrated back to before the table
    names = registry.names()
    rows = [JobTypeDefaults(name=name, options=options_of(registry.get(name))) for name in names]
    known = JobTypeDefaults.objects.using(alias)
    with transaction.atomic(using=alias):
        known.bulk_create(
            rows, update_conflicts=True, unique_fields=["name"], update_fields=["options"]
        )
        known.exclude(name__in=names).delete()


def options_of(job_type: JobType[..., Any]) -> dict[str, Any]:
    return {
        **{option: getattr(job_type, option) for option in AS_DECLARED},
        "backoff": None if job_type.backoff is None else job_type.backoff.as_json(),
        "tags": list(job_type.tags),
        "at_most_once": job_type.delivery == "at_most_once",
        "has_gates": any((job_type.resources, job_type.concurrency, job_type.tenant)),
        "max_bytes": conf().max_payload_bytes,
        "needs": sorted(job_type._needs),
        "takes": None if takes_any(job_type) else sorted(job_type._takes),
    }
