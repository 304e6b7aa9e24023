"""Scoreboards of trees that do well, and a clock that stands still for them."""

from __future__ import annotations

import pytest

from django_jobs.worker.health import server
from django_jobs.worker.ipc import scoreboard
from django_jobs.worker.ipc.scoreboard import Scoreboard

LEASE = 30.0


class Clock:
    """Stands in for the module ``time``. It stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def ago(self, seconds: float) -> float:
        """The time that was so long before."""
        return self.now - seconds

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


def stand_still(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of scoreboards and of reports, from now on."""
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    monkeypatch.setattr(scoreboard, "time", clock)
    return clock


def claiming(processes: int = 1) -> Scoreboard:
    """The scoreboard of a tree that lives and claims."""
    made = Scoreboard(processes)
    made.status.beat()
    made.status.turned_at = made.status.beat_at
    made.status.is_connected = True
    for number, slot in enumerate(made.slots, 1):
        slot.register(number, made.status.beat_at + LEASE)
        slot.note_settling(connected=True)
        slot.note_round(0.5)
    return made
