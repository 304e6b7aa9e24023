"""The places where the process of an attempt can seem to die."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from ..api.job_type import JobType
from ..lifecycle.job_columns import ClaimedJob

BEFORE_HANDLER = "before_handler"
AFTER_COMMIT = "after_commit"
AFTER_CALL = "after_call"
AFTER_EFFECT = "after_effect"
AFTER_SETTLE = "after_settle"

POINTS = {
    BEFORE_HANDLER: "the job is claimed, and its handler is about to be called",
    AFTER_COMMIT: "the handler has committed something: a statement, or an atomic block",
    AFTER_CALL: "once() has made its call, and the answer is not stored",
    AFTER_EFFECT: "the handler has returned, and nothing of its end is written",
    AFTER_SETTLE: "the job is settled, and its process does not know yet",
}


class ProcessDied(BaseException):
    """Ends a handler as if its process had died. Nothing that it does afterwards has an effect."""


@dataclass(slots=True, eq=False)
class Crash:
    """A crash at a point of the attempts of some job types: at its passage ``number``."""

    point: str
    job_types: Collection[str] | None
    number: int
    is_made: bool = False
    passed: int = 0

    def passes(self, point: str, job_type: str) -> bool:
        """Count a passage; return whether it crashes."""
        if self.is_made or point != self.point:
            return False
        if self.job_types is not None and job_type not in self.job_types:
            return False
        self.passed += 1
        self.is_made = self.passed == self.number
        return self.is_made


planned: list[Crash] = []
"""The crashes of the test that runs."""


@dataclass(slots=True, eq=False)
class Observer:
    """Follows one attempt through its points."""

    job: ClaimedJob
    died_at: str = ""
    error: BaseException | None = None
    """What the handler raised."""
    _is_running: bool = False
    _unobserved: int = field(default=0)

    def observed(self, job_type: JobType[..., Any] | None) -> JobType[..., Any] | None:
        """The job type with a handler that passes the points before and after its call."""
        if job_type is None:
            return None
        return replace(job_type, handler=self._around(job_type.handler))

    def reach(self, point: str) -> None:
        if self._unobserved or (point == AFTER_COMMIT and not self._is_running):
            return
        self.raise_if_dead()
        if any(crash.passes(point, self.job.job_type) for crash in planned):
            self.died_at = point
            raise ProcessDied(point)

    def raise_if_dead(self, sql: object = "") -> None:
        """Refuse what a dead process cannot do: anything but to give up a transaction."""
        if self.died_at and not self._unobserved and not str(sql).startswith("ROLLBACK"):
            raise ProcessDied(self.died_at)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """What is done here is not done by the handler."""
        self._unobserved += 1
        try:
            yield
        finally:
            self._unobserved -= 1

    def _around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(handler):

            @wraps(handler)
            async def observed_async(**payload: Any) -> Any:
                with self._running():
                    return await handler(**payload)

            return observed_async

        @wraps(handler)
        def observed(**payload: Any) -> Any:
            with self._running():
                return handler(**payload)

        return observed

    @contextmanager
    def _running(self) -> Iterator[None]:
        self.reach(BEFORE_HANDLER)
        self._is_running = True
        try:
            yield
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._is_running = False
        self.raise_if_dead()
        self.reach(AFTER_EFFECT)
