"""The event loop of a worker process, for its ``async def`` handlers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from ...domain.outcomes import Outcome, TimedOut
from ..context.attempt import StopHandler
from ..timeouts.limits import Interrupted

TICK = 0.25
"""Seconds between two checks whether a handler has to stop."""

Asked = Callable[[], Outcome | None]
"""Returns how a handler has to end now, or None."""


def _nothing_asked() -> None:
    return None


class HandlerLoop:
    """Runs coroutines on one thread, which starts with the first one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._stopping = False

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        timeout: float | None,
        asked: Asked = _nothing_asked,
    ) -> Any:
        """Run ``coroutine`` and wait for at most ``timeout`` seconds, from any thread. Raises
        :class:`Interrupted` if it was stopped by its time-out, or because ``asked`` returned a
        reason. The coroutine gets a ``CancelledError`` in both cases."""
        if self._stopping:
            coroutine.close()
            raise StopHandler
        future = asyncio.run_coroutine_threadsafe(
            _alone(coroutine, timeout, asked), self._started()
        )
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
        """Cancel all running handlers."""
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
                loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_on, args=(loop,), name="django_jobs-loop", daemon=True
                ).start()  # which may fail; the next one tries again
                self._loop = loop
            return self._loop


@dataclass(frozen=True, slots=True)
class _Exit:
    """Stands for ``sys.exit()`` and the like in a handler, which would end the loop."""

    error: BaseException


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop forever: a task that a handler started may exit too, or call ``stop()``."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):  # the code that awaits the task gets it too
            continue


async def _alone(coroutine: Coroutine[Any, Any, Any], timeout: float | None, asked: Asked) -> Any:
    """Run the coroutine like a request of ASGI: the ORM calls of this handler share no thread with
    another handler's, and their connections are closed with it."""
    async with ThreadSensitiveContext() as context:
        try:
            return await _bounded(coroutine, timeout, asked)
        except (SystemExit, KeyboardInterrupt) as error:
            return _Exit(error)
        finally:
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(connections.close_all)()


async def _bounded(coroutine: Coroutine[Any, Any, Any], timeout: float | None, asked: Asked) -> Any:
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(timeout)
    outcome: Outcome = TimedOut(seconds=timeout or 0.0)
    asking: asyncio.TimerHandle

    def ask() -> None:
        nonlocal outcome, asking
        end = asked()
        if end is None:
            asking = loop.call_later(TICK, ask)
        elif not limit.expired():
            outcome = end
            limit.reschedule(loop.time())  # now

    asking = loop.call_later(TICK, ask)
    try:
        async with limit:
            result = await coroutine
    except BaseException as error:
        if limit.expired():
            raise Interrupted(outcome, error) from None
        raise
    finally:
        asking.cancel()
    if limit.expired() and isinstance(outcome, TimedOut):
        raise Interrupted(
            outcome
        )  # the handler caught the cancellation; after a cancel, its success counts
    return result
