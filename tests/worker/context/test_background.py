"""The thread that runs statements for handlers."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest
from django.db import connection

from django_jobs.worker.connections import ping
from django_jobs.worker.context.background import BackgroundThread
from tests.patience import PATIENCE
from tests.worker.attempts import Desk


@pytest.fixture
def background(desk: Desk) -> BackgroundThread:
    """Closed when the test ends."""
    return desk.reporter.background


def test_tasks_are_done_in_order_on_one_thread_and_none_before_its_time(
    background: BackgroundThread,
) -> None:
    done: list[str] = []
    began = time.monotonic()
    late = background.submit(lambda: done.append("late") or time.monotonic(), after=0.2)
    for number in range(3):
        background.submit(lambda number=number: done.append(f"{number}"))  # type: ignore[misc]
    assert late.result(PATIENCE) - began >= 0.2
    assert done == ["0", "1", "2", "late"]
    names = {
        background.submit(lambda: threading.current_thread().name).result(PATIENCE)
        for _ in range(3)
    }
    assert names == {"django_jobs-background"}


def test_an_exception_is_raised_only_for_the_caller_of_its_task(
    background: BackgroundThread,
) -> None:
    def fail() -> None:
        raise SystemExit("out of here")

    with pytest.raises(SystemExit, match="out of here"):
        background.submit(fail).result(PATIENCE)
    assert background.submit(lambda: "still there").result(PATIENCE) == "still there"


def test_a_background_thread_has_its_own_connection(background: BackgroundThread) -> None:
    def backend() -> int:
        ping()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        return int(pid)

    assert (
        background.submit(backend).result(PATIENCE)
        == background.submit(backend).result(PATIENCE)
        != backend()
    )


class DoneJustNow(Future[str]):
    """A task that ends between the end of one wait for it and the look whether it is done."""

    def result(self, timeout: float | None = None) -> str:
        if timeout is not None and not self.done():
            self.set_result("its answer")
            raise TimeoutError
        return super().result(timeout)


def test_a_task_that_ends_just_when_a_wait_is_over_has_not_failed(
    background: BackgroundThread,
) -> None:
    assert background.wait(DoneJustNow()) == "its answer"


def test_a_time_out_of_the_task_itself_is_raised(background: BackgroundThread) -> None:
    def fail() -> None:
        raise TimeoutError("of a socket")

    with pytest.raises(TimeoutError, match="of a socket"):
        background.wait(background.submit(fail))


def test_nothing_is_left_behind_when_it_is_closed() -> None:
    background = BackgroundThread()
    background.close()  # it never began
    done: list[str] = []
    background.submit(lambda: done.append("due"))
    background.submit(lambda: done.append("not due"), after=3600)
    background.close()
    assert done == ["due"]
    assert "django_jobs-background" not in {thread.name for thread in threading.enumerate()}
