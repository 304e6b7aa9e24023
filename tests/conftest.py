"""What all tests share."""

from __future__ import annotations

import pytest

from django_jobs.lifecycle import waking
from django_jobs.models import Queue


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    """No test sees the queues or the throttle of another."""
    Queue.objects.forget_recent()
    waking._last_sent.clear()
