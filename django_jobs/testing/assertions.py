"""What was enqueued in a test, and the test case with these assertions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db.models import Max
from django.test import TestCase

from .. import registry
from ..api.steps import takes_any
from ..api.validation import known_queue
from ..conf import conf
from ..domain.numbers import is_whole
from ..domain.payload import is_same
from ..domain.states import JobState
from ..exceptions import PayloadError
from ..models import Job
from .crashing import AnyJobType, crash_at, expire_lease, job_type_of
from .draining import arun_jobs, immediate, run_jobs
from .travelling import return_to_now, travel

if TYPE_CHECKING:
    Base = TestCase
else:
    Base = object

TO_BE_RUN = (JobState.WAITING, JobState.SCHEDULED, JobState.BLOCKED, JobState.READY)
"""The statuses of a job that is enqueued: an attempt of it is still to begin."""

MOST_SHOWN = 20

Payload = Mapping[str, Any]


def assert_enqueued(
    job_type: AnyJobType,
    payload: Payload | None = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[Job]:
    """Assert that a job is enqueued, or exactly ``count`` jobs, and return them.

    Enqueued jobs are those that are still to be run: ready, blocked, waiting, or scheduled, such as
    retries. ``payload`` has arguments that the job must have; it may have others.
    """
    if count is not None and not (is_whole(count) and count >= 0):
        raise TypeError(f"assert_enqueued(): count is a number of jobs, not {count!r}")
    jobs, expected = _find(job_type, payload, queue)
    if (len(jobs) != count) if count is not None else not jobs:
        wanted = "a job" if count is None else f"{count} job{'' if count == 1 else 's'}"
        found = f"; {len(jobs)} of them are" if jobs else "; none is"
        raise AssertionError(f"{wanted} of {expected} should be enqueued{found}.{_all(expected)}")
    return jobs


def refute_enqueued(
    job_type: AnyJobType, payload: Payload | None = None, queue: str | None = None
) -> None:
    """Assert that no such job is enqueued. The arguments are those of :func:`assert_enqueued`.

    Raises ``UnknownQueue``, and ``PayloadError`` for an argument that the handler does not take: no
    job could have either.
    """
    jobs, expected = _find(job_type, payload, queue)
    expected.check()
    if jobs:
        shown = "".join(f"\n  {_shown(job)}" for job in jobs[:MOST_SHOWN])
        raise AssertionError(
            f"no job of {expected} should be enqueued, and {len(jobs)} are:{shown}"
        )


@contextmanager
def capture_jobs() -> Iterator[list[Job]]:
    """Collect the jobs that are made inside the block, in any way. The list is filled at its end,
    in the order of their ids."""
    jobs: list[Job] = []
    rows = Job.objects.using(conf().database)
    last = rows.aggregate(last=Max("id"))["last"] or 0
    yield jobs
    jobs += rows.filter(id__gt=last).order_by("id")


class _Expected:
    def __init__(self, job_type: AnyJobType, payload: Payload | None, queue: str | None) -> None:
        self.job_type = job_type_of(job_type)
        if not isinstance(payload or {}, Mapping):
            raise TypeError(f"payload is a dict of arguments by name, not {payload!r}")
        encoded = self.job_type.encoded(dict(payload or {}), "payload")
        self.payload: dict[str, Any] = json.loads(encoded)
        self.queue = queue

    def __str__(self) -> str:
        words = [self.job_type.name]
        if self.payload:
            words.append(f"with {self.payload}")
        if self.queue is not None:
            words.append(f"in {self.queue}")
        return " ".join(words)

    def check(self) -> None:
        """Raise an error if no job could be meant."""
        if self.queue is not None:
            known_queue(self.queue, "refute_enqueued()")
        unknown = self.payload.keys() - self.job_type.signature.parameters.keys()
        if unknown and not takes_any(self.job_type):
            raise PayloadError(
                f"refute_enqueued(): {self.job_type.name}{self.job_type.signature} does not take "
                f"{', '.join(sorted(unknown))}"
            )

    def differences(self, job: Job) -> list[str]:
        """Why this job is not meant, in words."""
        found = []
        if job.job_type not in registry.family(self.job_type.name):
            found.append("another job type")
        if job.status not in TO_BE_RUN:
            found.append(f"it is {job.status}")
        if self.queue not in (None, job.queue):
            found.append(f"its queue is {job.queue!r}, not {self.queue!r}")
        payload = job.payload if isinstance(job.payload, dict) else {}
        for name, value in self.payload.items():
            if name not in payload:
                found.append(f"it has no {name}")
            elif not is_same(payload[name], value):
                found.append(f"its {name} is {payload[name]!r}, not {value!r}")
        return found


def _find(
    job_type: AnyJobType, payload: Payload | None, queue: str | None
) -> tuple[list[Job], _Expected]:
    expected = _Expected(job_type, payload, queue)
    names = registry.family(expected.job_type.name)
    rows = Job.objects.using(conf().database).filter(job_type__in=names, status__in=TO_BE_RUN)
    return [job for job in rows.order_by("id") if not expected.differences(job)], expected


def _all(expected: _Expected) -> str:
    """The jobs that there are, with how they differ; those of the job type first."""
    jobs = list(Job.objects.using(conf().database).order_by("id")[: 100 * MOST_SHOWN])
    if not jobs:
        return " There are no jobs at all."
    jobs.sort(key=lambda job: len(expected.differences(job)))
    lines = []
    for job in jobs[:MOST_SHOWN]:
        differs = "; ".join(expected.differences(job)) or "as expected"
        lines.append(f"\n  {_shown(job)}: {differs}")
    more = len(jobs) - MOST_SHOWN
    return " There are:" + "".join(lines) + (f"\n  and {more} more" if more > 0 else "")


def _shown(job: Job) -> str:
    return f"#{job.pk} {job.job_type} {job.payload} {job.status} in {job.queue}"


class JobsMixin(Base):
    """For a ``TestCase`` or a ``TransactionTestCase``."""

    run_jobs = staticmethod(run_jobs)
    arun_jobs = staticmethod(arun_jobs)
    assert_enqueued = staticmethod(assert_enqueued)
    refute_enqueued = staticmethod(refute_enqueued)
    capture_jobs = staticmethod(capture_jobs)
    immediate = staticmethod(immediate)
    travel = staticmethod(travel)
    crash_at = staticmethod(crash_at)
    expire_lease = staticmethod(expire_lease)

    def tearDown(self) -> None:
        return_to_now()
        super().tearDown()


class JobsTestCase(JobsMixin, TestCase):
    """A ``TestCase`` with :class:`JobsMixin`."""
