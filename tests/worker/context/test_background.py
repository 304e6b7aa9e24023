"""The thread that runs statements for handlers."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import connection

from django_jobs.worker.connections import ping
from django_jobs.worker.context.background import Errands
from tests.worker.attempts import Desk


@pytest.fixture
def errands(desk: Desk) -> Errands:
    """Closed when the test ends."""
    return desk.reporter.errands


def test_errands_are_done_in_order_on_one_thread_and_none_before_its_time(errands: Errands) -> None:
    done: list[str] = []
    began = time.monotonic()
    late = errands.ask(lambda: done.append("late") or time.monotonic(), after=0.2)
    for number in range(3):
        errands.ask(lambda number=number: done.append(f"{number}"))  # type: ignore[misc]
    assert late.result(60) - began >= 0.2
    assert done == ["0", "1", "2", "late"]
    names = {errands.ask(lambda: threading.current_thread().name).result(60) for _ in range(3)}
    assert names == {"django_jobs-errands"}


def test_what_fails_is_told_to_whoever_asked_and_to_nobody_else(errands: Errands) -> None:
    def fail() -> None:
        raise SystemExit("out of here")

    with pytest.raises(SystemExit, match="out of here"):
        errands.ask(fail).result(60)
    assert errands.ask(lambda: "still there").result(60) == "still there"


def test_its_connection_is_its_own(errands: Errands) -> None:
    def backend() -> int:
        ping()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        return int(pid)

    assert errands.ask(backend).result(60) == errands.ask(backend).result(60) != backend()


def test_nothing_is_left_behind_when_it_is_closed() -> None:
    errands = Errands()
    errands.close()  # it never began
    done: list[str] = []
    errands.ask(lambda: done.append("due"))
    errands.ask(lambda: done.append("not due"), after=3600)
    errands.close()
    assert done == ["due"]
    assert "django_jobs-errands" not in {thread.name for thread in threading.enumerate()}
