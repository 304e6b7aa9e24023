"""Fixtures of the tests of the board and of the alerts."""

from tests.metrics.conftest import count_all
from tests.worker.conftest import start_worker

__all__ = ["count_all", "start_worker"]
