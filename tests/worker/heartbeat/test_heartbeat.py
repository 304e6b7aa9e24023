"""The loop of the heartbeat process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from django_jobs.worker.health.server import liveness
from django_jobs.worker.heartbeat import heartbeat
from django_jobs.worker.ipc.pipes import Message, MessagePipe, MessageType
from django_jobs.worker.options import Options
from tests.worker.health.scoreboards import claiming, stand_still

SHORT_LEASE = 2.0


def test_statements_that_cannot_be_cancelled_in_time_are_no_failure_of_the_liveness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A database that takes no new connection leaves no cancel request through: each costs a
    second."""
    clock, scoreboard = stand_still(monkeypatch), claiming()
    monkeypatch.setattr(heartbeat, "time", clock)
    scoreboard.slots[0].clear()  # no worker, so nothing to renew
    problems: list[str] = []

    def wait(seconds: float) -> None:
        clock.now = scoreboard.status.turned_at = clock.now + seconds
        problems.extend(liveness(scoreboard, SHORT_LEASE).problems)

    class Hanging:
        """A thread whose statement takes too long, and its deadline."""

        def __init__(self, *_: object) -> None:
            self.thread = threading.Thread()
            self.deadline = self

        def enforce(self) -> None:
            wait(1.0)

    class Pipe:
        """Of a supervisor that ends the second turn."""

        turns = 0

        def receive(self, seconds: float) -> Message | None:
            wait(seconds)
            self.turns += 1
            return {"type": MessageType.QUIT} if self.turns == 2 else None

    monkeypatch.setattr(heartbeat, "make_room_by", lambda *_: None)  # of all later tests too
    monkeypatch.setattr(heartbeat, "Upkeep", Hanging)
    monkeypatch.setattr(heartbeat, "CrashRecovery", Hanging)
    options = Options(queues=(), lease=SHORT_LEASE)
    with ThreadPoolExecutor(1) as threads:  # its connection is replaced
        ended = threads.submit(heartbeat.run, cast(MessagePipe, Pipe()), scoreboard, options, ())
    assert ended.result() == 0
    assert problems == []
    assert clock.now == 1_000.0 + 2 * (1.0 + 1.0 + heartbeat.LONGEST_ROUND)
