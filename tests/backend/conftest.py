"""The fixtures of these tests."""

from tests.worker.conftest import start_worker

__all__ = ["start_worker"]
