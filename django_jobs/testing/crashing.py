"""Crashes on purpose, which prove that a handler may run again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from .. import registry
from ..api.job_type import JobType
from ..conf import conf
from ..domain.numbers import is_whole
from ..domain.states import JobState
from ..lifecycle.claiming import claim
from ..lifecycle.reaping import reap
from ..lifecycle.settling import give_back
from ..models import Job, Worker
from ..models.database import database_time
from ..worker.events import emit_settled
from .crash_points import POINTS, Crash, planned
from .inline_worker import register


class DjangoTask(Protocol):
    """A Task of Django, for :class:`~django_jobs.backend.JobsBackend`."""

    @property
    def module_path(self) -> str: ...


class CeleryTask(Protocol):
    """A task of Celery, with :class:`~django_jobs.contrib.celery.JobsTask`."""

    @property
    def name(self) -> str: ...


AnyJobType = JobType[..., Any] | DjangoTask | CeleryTask | str

MOST = 10_000
"""Ready jobs of a queue among which one can be claimed."""


@contextmanager
def crash_at(point: str, *, job_type: AnyJobType | None = None, number: int = 1) -> Iterator[None]:
    """In the block, let one attempt end as if its process had died at ``point``. Its job is
    recovered, and runs again.

    The points are ``before_handler``, ``after_commit`` (of a statement or an atomic block of the
    handler), ``after_call`` (of ``once()``), ``after_effect`` (the handler has
    returned) and ``after_settle``. The ``number``-th passage of the point crashes, counted over the
    attempts in the block. ``job_type`` restricts whose attempts count.

    Raises ``AssertionError`` at the end of the block if no attempt came there.
    """
    if point not in POINTS:
        raise ValueError(f"crash_at(): no point is named {point!r}; known are: {', '.join(POINTS)}")
    if not is_whole(number) or number < 1:
        raise ValueError(f"crash_at(): the first passage has the number 1, not {number!r}")
    crash = Crash(point, None if job_type is None else names_of(job_type), number)
    planned.append(crash)
    try:
        yield
    finally:
        planned.remove(crash)
    if not crash.is_made:
        came = f"{crash.passed} times" if crash.passed else "never"
        raise AssertionError(f"no attempt crashed: {point} was passed {came}, not {number} times")


def expire_lease(job: Job) -> None:
    """End the lease of the worker that has claimed ``job``, as if it were cut off, and recover its
    jobs: they run again.

    If no worker has claimed the job and it is ready, one does so first. While its handler runs (in
    a mock that it calls), the attempt continues without its job: its reports and its end are
    refused.
    """
    if not isinstance(job, Job):
        raise TypeError(f"expire_lease() takes a job, as enqueue() returns it, not {job!r}")
    row = Job.objects.using(conf().database).get(pk=job.pk)
    if row.status == JobState.READY:
        worker: int | None = _claim(row)
    elif row.status == JobState.RUNNING:
        worker = row.worker_id
    else:
        raise ValueError(f"expire_lease(): job {job.pk} is {row.status}; no worker can have it")
    over = Worker.objects.using(conf().database).filter(pk__in=[worker])
    over.update(lease_expires_at=database_time())
    emit_settled(reap())


def job_type_of(given: AnyJobType) -> JobType[..., Any]:
    """A job type: itself, that of a Task, or the one that has this name."""
    if isinstance(given, JobType):
        return given
    name = given if isinstance(given, str) else getattr(given, "module_path", None)
    name = name or getattr(given, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"{given!r} is neither a job type nor the name of one")
    return registry.get(name)


def names_of(job_type: AnyJobType) -> list[str]:
    return registry.family(job_type_of(job_type).name)


def _claim(job: Job) -> int:
    worker = register("expire_lease", [job.queue])
    held = claim(job.queue, worker=worker, job_types=registry.versions(), limit=MOST, limited=True)
    give_back([one.fence for one in held if one.id != job.pk])
    if job.pk not in {one.id for one in held}:
        raise ValueError(f"expire_lease(): no worker can claim job {job.pk} now")
    return worker
