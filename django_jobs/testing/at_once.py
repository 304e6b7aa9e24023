"""Runs jobs at once, in the process that enqueues them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..lifecycle import notifying
from ..lifecycle.notifying import read_blocked
from ..models.database import is_of_a_test
from .draining import run_jobs
from .inline_worker import is_at_work


@contextmanager
def immediate(*, check: bool = False) -> Iterator[None]:
    """In the block, run jobs as soon as they are ready: those that are enqueued, opened by others,
    or signalled, and what is ready already in their queues.

    A job starts when the transaction that made it ready is committed; in a ``TestCase``, at the end
    of the outermost ``atomic`` block that is not the test's, or at once if there is none or it has
    no savepoint. Its payload and its result pass through the database as always. A failure does not
    raise in the caller, unless ``check`` is set: then :class:`JobFailed` is raised. The retry
    waits, as do other jobs that are due later.

    Jobs that a handler makes ready run after it.
    """
    before, notifying.run_at_once = notifying.run_at_once, AtOnce(check=check)
    try:
        yield
    finally:
        notifying.run_at_once = before


class AtOnce:
    """Takes the place of the workers: runs the jobs of the queues that it is notified of."""

    def __init__(self, *, check: bool = False, of_the_setting: bool = False) -> None:
        self.of_the_setting = of_the_setting
        """Whether it ends with the setting, and not with a block."""
        self._check = check
        self._noted = threading.local()

    def __call__(self, hint: str, connection: Any) -> None:
        """A queue has jobs once the transaction of this connection is committed."""
        queue, _ = read_blocked(hint) or (hint, None)
        if queue.startswith(":"):  # it is for workers only
            return
        self._queues[queue] = None
        if is_at_work():
            return  # the attempt that is under way comes first
        if not (connection.atomic_blocks and connection.atomic_blocks[0]._from_testcase):
            connection.on_commit(self._run)
        elif _has_an_end(connection):
            _call_at_the_end(connection, self._run)
        else:
            self._run()

    @property
    def _queues(self) -> dict[str, None]:
        """The queues to look at in this thread, in order."""
        if not hasattr(self._noted, "queues"):
            self._noted.queues = {}
        queues: dict[str, None] = self._noted.queues
        return queues

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Jobs that would run in the block run at its end."""
        self._noted.is_held, self._noted.is_due = True, False
        try:
            yield
        finally:
            self._noted.is_held = False
        if self._noted.is_due:
            self._run()

    def _run(self) -> None:
        if getattr(self._noted, "is_held", False):
            self._noted.is_due = True
            return
        while self._queues and not is_at_work():
            queue = next(iter(self._queues))
            del self._queues[queue]
            run_jobs(queue, check=self._check)


def _has_an_end(connection: Any) -> bool:
    """Whether the outermost block inside the transaction of the test, if there is one, has a
    savepoint. Without it, as in ``QuerySet.delete()``, Django calls nothing when it ends."""
    blocks_of_the_test = sum(block._from_testcase for block in connection.atomic_blocks)
    savepoints = connection.savepoint_ids[blocks_of_the_test - 1 :]
    return bool(savepoints) and savepoints[0] is not None


def _call_at_the_end(connection: Any, run: Any) -> None:
    """Call ``run`` when the outermost block inside the transaction of the test has ended well.
    Django calls nothing then, because it is a savepoint for it."""

    def has_ended() -> bool:
        if not is_of_a_test(connection):
            return False
        del connection.savepoint_commit, connection.savepoint_rollback
        return True

    def commit(savepoint: str) -> None:
        type(connection).savepoint_commit(connection, savepoint)
        if has_ended():
            run()

    def roll_back(savepoint: str) -> None:
        # Django commits the savepoint after it has rolled back to it.
        has_ended()
        type(connection).savepoint_rollback(connection, savepoint)

    if "savepoint_commit" not in vars(connection):
        connection.savepoint_commit, connection.savepoint_rollback = commit, roll_back
