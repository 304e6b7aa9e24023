"""Fixtures of the tests of workflows."""

from tests.worker.conftest import start_worker

__all__ = ["start_worker"]
