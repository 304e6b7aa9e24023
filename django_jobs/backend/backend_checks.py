"""What is wrong with a backend in ``TASKS``. Django asks each backend.

E016 app not installed   E018 unknown option
E017 not PostgreSQL      W003 queue not configured
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from ..conf import conf
from ..domain.hints import did_you_mean
from .job_task import OF_JOB_TYPES

if TYPE_CHECKING:
    from .jobs_backend import JobsBackend


def problems(backend: JobsBackend) -> Iterator[CheckMessage]:
    """Each problem of a backend: no app, no PostgreSQL, unknown options, queues that are not
    configured."""
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed("django_jobs"):
        yield Error(
            f"{where} is a JobsBackend, but django_jobs is not installed.",
            hint='Add "django_jobs" to INSTALLED_APPS.',
            id="django_jobs.E016",
        )
    try:
        vendor = connections[conf().database].vendor
    except ConnectionDoesNotExist:
        vendor = "postgresql"  # E008 reports the alias
    if vendor != "postgresql":
        yield Error(
            f"{where} is a JobsBackend, and the database {conf().database!r} is {vendor}.",
            hint='Point DJANGO_JOBS["DATABASE"] to a PostgreSQL database.',
            id="django_jobs.E017",
        )
    for option in backend.options:
        if option not in OF_JOB_TYPES:
            similar = did_you_mean(option, OF_JOB_TYPES)
            yield Error(
                f'{where}["OPTIONS"] has the unknown option {option!r}.',
                hint=" ".join(filter(None, (similar, f"Known are: {', '.join(OF_JOB_TYPES)}."))),
                id="django_jobs.E018",
            )
    for queue in sorted(backend.queues - set(conf().queues)):
        yield Warning(
            f'{where}["QUEUES"] names {queue!r}, which is not in DJANGO_JOBS["QUEUES"].',
            hint="Add it there and run migrate, unless it was made in the admin.",
            id="django_jobs.W003",
        )
