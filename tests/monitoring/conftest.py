"""Fixtures of the tests of the board and of the alerts."""

from tests.worker.conftest import start_worker

__all__ = ["start_worker"]
