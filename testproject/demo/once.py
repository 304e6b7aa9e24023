"""``demo --once``: run all jobs once and check the results. CI runs this."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from . import checking, shop_checking, work
from .receiver import Receiver
from .running import Child, Children, DemoError, StopAsked, start_worker

POLL_SECONDS = 0.2


def run_once(say: Callable[[str], None], stop: StopAsked, time_limit: float) -> bool:
    """Enqueue everything, run a worker until all jobs are settled, and print the checks. Returns
    whether all passed.

    Raises :class:`DemoError` if the worker ends before, or after ``time_limit`` seconds.
    """
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="django_jobs-demo-") as logs,
        Receiver() as receiver,
        Children(Path(logs)) as children,
    ):
        deliveries = work.enqueue_everything(receiver)
        work.start_shop()
        worker = start_worker(children)
        deadline = Deadline(worker, stop, time_limit)
        deadline.wait_until(work.is_under_way)
        work.enqueue_killer()
        deadline.wait_until(lambda: not checking.demo_jobs().live().exists())
        deadline.wait_until(shop_checking.is_over)
        work.refill_and_replay()
        deadline.wait_until(lambda: not checking.demo_jobs().live().exists())
        settled = time.monotonic()
        exit_code = worker.stop()
        checks = checking.check_everything(receiver, deliveries)
        checks += shop_checking.check_shop()
        checks.append(
            checking.Check("the worker stopped cleanly", exit_code == 0, f"exit code {exit_code}")
        )
        for line in checking.summary():
            say(line)
        say(f"took          {settled - started:.1f} s until all was settled")
        for check in checks:
            say(f"{'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.found}")
        passed = all(check.passed for check in checks)
        if not passed:
            say(f"The worker's last lines:\n{worker.tail()}")
    return passed


class Deadline:
    """Waiting for the worker, with an end."""

    def __init__(self, worker: Child, stop: StopAsked, seconds: float) -> None:
        self._worker = worker
        self._stop = stop
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Raises :class:`DemoError` if time is up, the worker has ended or a stop is asked for."""
        while not condition():
            self._worker.check()
            if time.monotonic() > self._end:
                raise DemoError(
                    f"after {self._seconds:g} s the work is not done: "
                    f"{checking.describe(checking.demo_jobs())}. "
                    f"The worker's last lines:\n{self._worker.tail()}"
                )
            if self._stop.wait(POLL_SECONDS):
                raise DemoError("stopped before the work was done")
