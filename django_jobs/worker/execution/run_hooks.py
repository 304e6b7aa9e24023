"""The hooks of the project around a run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any

from asgiref.sync import sync_to_async

from ...api.hooks import Hook, HookEvent, loaded, manager_of
from ...domain.errors import ErrorReport
from ...domain.outcomes import Outcome, TimedOut
from ...exceptions import HookError, LeaseLost, TimeLimitExceeded
from ...lifecycle.settling import Settled
from ...logs import log_event
from ..connections import nothing
from ..context.attempt import Attempt, StopHandler
from ..timeouts.limits import Interrupted
from .failures import deciding


def call_with_hooks(
    attempt: Attempt, payload: dict[str, Any], call: Callable[[], Outcome | Settled]
) -> Outcome | Settled:
    """Enter all hooks, the first one outermost; ``call``; leave them in reverse order.

    Raises :class:`HookError` if a hook fails before the call or after its success, also by
    ``sys.exit()``, and a :class:`Fate` that it raises. What a hook raises after the call has
    failed, or has committed an ``exactly_once`` attempt, is logged.
    """
    event = _event_of(attempt, payload)
    result: Outcome | Settled | None = None
    try:
        with ExitStack() as stack:
            _enter(stack, event)
            result = call()
    except BaseException:  # also the stop at the end of a drain: the job has ended
        if not isinstance(result, Settled):
            raise
        _log_failure(event, "after the commit")
    assert result is not None
    return result


async def acall_with_hooks(
    attempt: Attempt, payload: dict[str, Any], call: Callable[[], Awaitable[Outcome]]
) -> Outcome:
    """:func:`call_with_hooks` on an event loop. The hooks are entered and left in the thread for
    blocking calls of the handler, in the context of its task, so that it sees what they set."""
    assert attempt.in_thread is not None
    stack = await attempt.in_thread(partial(_entered, _event_of(attempt, payload)))
    try:
        outcome = await call()
    except BaseException as error:
        leave = partial(stack.__exit__, type(error), error, error.__traceback__)
        await attempt.in_thread(leave)
        raise
    await attempt.in_thread(stack.close)
    return outcome


def _event_of(attempt: Attempt, payload: dict[str, Any]) -> HookEvent:
    job = attempt.job
    return HookEvent(
        kind="run",
        job_type=job.job_type,
        queue=job.queue,
        headers=attempt.headers,
        payload=MappingProxyType(payload),
        job_id=job.id,
        attempt=job.attempt,
    )


def _enter(stack: ExitStack, event: HookEvent) -> None:
    for path, hook in loaded():
        stack.enter_context(_RunHook(path, hook, event))


def _entered(event: HookEvent) -> ExitStack:
    """The hooks, entered. If one fails, those before it are left."""
    with ExitStack() as stack:
        _enter(stack, event)
        return stack.pop_all()


async def in_context(handler: Callable[..., Any], payload: dict[str, Any]) -> Any:
    """Call an async handler so that it sees the language and the time zone that hooks have set in
    another thread. asgiref moves such values when it comes back from a thread."""
    await sync_to_async(nothing)()
    return await handler(**payload)


class _RunHook(AbstractContextManager[None]):
    def __init__(self, path: str, hook: Hook, event: HookEvent) -> None:
        self._path = path
        self._hook = hook
        self._event = event

    def __enter__(self) -> None:
        with self._named():
            self._manager = manager_of(self._path, self._hook, self._event)
            self._manager.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            with self._named():
                self._manager.__exit__(None, None, None)
            return
        shown = _shown(error)
        try:
            self._manager.__exit__(type(shown), shown, shown.__traceback__)
        except BaseException as raised:  # also sys.exit()
            if raised is shown:
                return
            decides = deciding(raised)
            if isinstance(decides, StopHandler) or (decides and _may_be_replaced(error)):
                raise
            _log_failure(self._event, self._path)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the hook in what it raises, unless that is the fate of the job."""
        try:
            yield
        except HookError:
            raise
        except BaseException as error:  # also sys.exit(), which would end the job by its retry_on
            if deciding(error) is not None:
                raise
            raise HookError(
                f"the hook {self._path} raised {ErrorReport.of(error).summary}"
            ) from error


def _shown(error: BaseException) -> BaseException:
    """The exception that a hook gets: of an interrupted handler, the one that it got itself."""
    if not isinstance(error, Interrupted):
        return error
    timed_out = isinstance(error.outcome, TimedOut)
    shown = TimeLimitExceeded("the attempt exceeded its time-out") if timed_out else StopHandler()
    return shown.with_traceback(error.__traceback__)


def _may_be_replaced(error: BaseException) -> bool:
    """Whether the handler failed by itself: neither stopped from outside nor without its lease."""
    return isinstance(error, Exception) and not isinstance(error, Interrupted | LeaseLost)


def _log_failure(event: HookEvent, hook: str) -> None:
    fields = {"job_id": event.job_id, "job_type": event.job_type, "attempt": event.attempt}
    log_event("hook_failed", logging.ERROR, fields | {"hook": hook}, exc_info=True)
