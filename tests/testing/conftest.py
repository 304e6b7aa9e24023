"""Fixtures of the tests that start workers."""

from tests.worker.conftest import start_worker

__all__ = ["start_worker"]
