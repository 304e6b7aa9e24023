"""Processes that cannot be forked. For isolated jobs: test_memory."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from django_jobs.worker.ipc.pipes import MessagePipe
from django_jobs.worker.options import Options
from django_jobs.worker.supervisor import process_tree
from django_jobs.worker.supervisor.supervisor import Supervisor


def test_a_heartbeat_that_could_not_be_forked_is_started_a_second_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exception would end the supervisor, and with it all workers and their jobs."""
    tries: list[Callable[..., int]] = []

    def no_fork(work: Callable[..., int], *_: Any, **__: Any) -> tuple[int, MessagePipe]:
        tries.append(work)
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(process_tree, "fork", no_fork)
    supervisor = Supervisor(Options(queues=()))
    status = supervisor._tree.scoreboard.status
    try:
        supervisor._start_heartbeat(100.0)
        supervisor._start_heartbeat(100.9)
        assert len(tries) == 1
        supervisor._start_heartbeat(101.0)
        assert len(tries) == 2
        assert not status.beat_at, "probes shall see that it does not run"
    finally:
        supervisor._tree.close_all()
