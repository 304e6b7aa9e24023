"""Fixtures of the tests that make faults."""

from tests.worker.conftest import start_worker

__all__ = ["start_worker"]
