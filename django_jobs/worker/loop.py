"""The one event loop of a worker process, for its ``async def`` handlers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from .attempt import bounded
from .failures import StopHandler


class HandlerLoop:
    """Runs coroutines on a thread of its own, started with the first one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
        """Wait for ``coroutine``, at most ``timeout`` seconds, from any thread."""
        if self._stopping:
            coroutine.close()
            raise StopHandler
        future = asyncio.run_coroutine_threadsafe(_alone(coroutine, timeout), self._started())
        try:
            result = future.result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):  # no relatives
            if self._stopping:
                raise StopHandler from None
            raise
        if isinstance(result, _Exit):
            raise result.error
        return result

    def stop_all(self) -> None:
        """Cancel every handler that is under way."""
        self._stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        assert self._loop is not None
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_on, args=(self._loop,), name="django_jobs-loop", daemon=True
                ).start()
            return self._loop


@dataclass(frozen=True, slots=True)
class _Exit:
    """A ``sys.exit()`` or the like in a handler. As an exception it would end the loop."""

    error: BaseException


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop for good: a task that a handler started may exit too, or call ``stop()``."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):  # whoever awaits that task has it as well
            continue


async def _alone(coroutine: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
    """As a request of ASGI: the ORM's calls of this handler share a thread with no other's, and
    their connections are closed with it."""
    async with ThreadSensitiveContext() as context:
        try:
            return await bounded(coroutine, timeout)
        except (SystemExit, KeyboardInterrupt) as error:
            return _Exit(error)
        finally:
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(connections.close_all)()
