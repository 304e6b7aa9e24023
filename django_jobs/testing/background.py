"""Makes the statements of handlers that are not part of their transactions: receipts, waits,
progress. A worker has a thread and a connection for them, which would not see the test's rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

from ..worker.context.attempt import Attempt
from ..worker.context.background import BackgroundThread, Task
from ..worker.context.progress import Reporter
from .crash_points import AFTER_CALL, Observer
from .nested_transactions import Transactions

R = TypeVar("R")


class InlineBackground(BackgroundThread):
    """Runs each task at once, in the thread of the test and on its connection."""

    def __init__(self, transactions: Transactions, observer: Observer) -> None:
        super().__init__()
        self._transactions = transactions
        self._observer = observer
        self._later: list[Task[Any]] = []

    def submit(self, work: Callable[[], R], *, after: float = 0.0) -> Future[R]:
        self._observer.raise_if_dead()

        def work_and_keep() -> R:
            with self._observer.unobserved():
                result = work()
            self._transactions.keep(work)
            return result

        task = Task(work_and_keep)
        if after > 0:
            self._later.append(task)
        elif is_in_event_loop():
            self._later.append(task)  # if nobody waits for it, the loop may end first
            loop = asyncio.get_running_loop()
            asyncio.run_coroutine_threadsafe(sync_to_async(_run)(task), loop)
        else:
            task.run()
        return task.result

    def submit_for_attempt(self, attempt: Attempt, work: Callable[[], R]) -> Future[R]:
        self._observer.reach(AFTER_CALL)
        return super().submit_for_attempt(attempt, work)

    def close(self) -> None:
        """Run the tasks that were submitted for later: the attempt ends. A dead process does
        not."""
        later, self._later = self._later, []
        for task in later if not self._observer.died_at else ():
            _run(task)


class InlineReporter(Reporter):
    """The reports of one attempt."""

    def __init__(self, transactions: Transactions, observer: Observer) -> None:
        super().__init__()
        self.background = InlineBackground(transactions, observer)


def _run(task: Task[Any]) -> None:
    if not task.result.done():
        task.run()


def is_in_event_loop() -> bool:
    """Whether an event loop runs in this thread, which may not use the database then."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
