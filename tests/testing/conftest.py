"""Fixtures of the tests that start workers, and the one of the testing kit: the environment of the
tests may be older than its entry point."""

from django_jobs.testing.pytest_plugin import jobs
from tests.worker.conftest import start_worker

__all__ = ["jobs", "start_worker"]
