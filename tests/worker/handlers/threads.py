"""An executor thread of the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections

from django_jobs.worker.handlers.connections import HandlerConnections

T = TypeVar("T")


class Handlers:
    """One executor thread and its connections."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._connections = self._thread.submit(HandlerConnections).result()
        self.left_open = False
        """Whether the last handler ended in a transaction."""

    def run(self, handler: Callable[[], T]) -> T:
        """One handler, as an executor thread runs it."""
        return self._thread.submit(self._run, handler).result()

    def _run(self, handler: Callable[[], T]) -> T:
        with self._connections.in_use:
            self._connections.prepare()
            try:
                return handler()
            finally:
                self.left_open = self._connections.clean()
                self._connections.reset()

    def close(self) -> None:
        self._thread.submit(connections.close_all).result()
        self._thread.shutdown()
