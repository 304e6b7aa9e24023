"""What all tests share."""

from __future__ import annotations

import pytest

from django_jobs import registry
from django_jobs.lifecycle import waking
from django_jobs.models import Queue


def pytest_configure() -> None:
    """The schedules of the demo are not written to the tests' tables."""
    for name, fields in registry.schedules().items():
        if fields["job_type"].startswith("demo."):
            registry.forget_schedule(name)


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    """No test sees the queues or the throttle of another."""
    Queue.objects.forget_recent()
    waking._last_sent.clear()
