"""The functions of the kit as methods of a ``TestCase``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.test import TestCase

from .assertions import assert_enqueued, capture_jobs, refute_enqueued
from .at_once import immediate
from .crashing import crash_at, expire_lease
from .draining import arun_jobs, run_jobs
from .travelling import return_to_now, travel

if TYPE_CHECKING:
    Base = TestCase
else:
    Base = object


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
