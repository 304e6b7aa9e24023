"""Imported by the conftest of a suite: what it sends is rows, run with the real claim and settle in
the transaction of the test. Where the suite is eager they run at once; else when a result is asked
for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from celery import signals
from django.conf import settings

from django_jobs.contrib.celery.results.backend import RowsBackend
from django_jobs.domain.states import LIVE
from django_jobs.models import Job
from django_jobs.testing import travel
from tests.contrib.celery.running import run_all
from tests.contrib.celery.test_suites import SUITES


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the excepted tests out, each of which has to exist."""
    exceptions = SUITES[os.environ["SUITE"]].exceptions
    left_out = [item for item in items if item.nodeid.endswith(tuple(exceptions))]
    assert len(left_out) == len(exceptions), left_out
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def django_db_setup() -> None:
    """The database is that of the test which started this process."""


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    waits = RowsBackend.wait_for

    def wait_for(self: Any, *args: Any, **options: Any) -> Any:
        run_all()
        while Job.objects.filter(status__in=LIVE).exists():
            travel(60)  # the rate of a task is in force
            run_all()
        return waits(self, *args, **options)

    def run_if_eager(**_: Any) -> None:
        if getattr(settings, "CELERY_ALWAYS_EAGER", False):
            run_all()

    if os.environ["SUITE"] == "djcelery_email":
        monkeypatch.setattr(settings, "EMAIL_BACKEND", "djcelery_email.backends.CeleryEmailBackend")
    monkeypatch.setattr(RowsBackend, "wait_for", wait_for)
    signals.after_task_publish.connect(run_if_eager)
    yield
    signals.after_task_publish.disconnect(run_if_eager)
