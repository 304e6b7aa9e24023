"""The supervisor's view of the processes of the tree."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ...lifecycle.job_columns import Fence
from ..ipc.pipes import AttemptEnd, Message, MessagePipe, MessageType, describe_exit, kill, refuse
from ..ipc.scoreboard import StartedJob, WorkerSlot

QUICK_DEATH = 2.0
LONGEST_PAUSE = 30.0
"""Seconds. A process that twice in a row lived for less than ``QUICK_DEATH`` seconds is restarted
after a pause that doubles up to this."""


@dataclass(slots=True)
class WorkerProcessHandle:
    """A worker process and its slot on the scoreboard."""

    slot: WorkerSlot
    pid: int = 0
    pipe: MessagePipe | None = None
    started: float = 0.0
    quick_deaths: int = 0
    start_at: float = 0.0
    wanted: bool = True
    asked_to_drain: bool = False
    """Whether an operator asked its process to drain."""
    leaving: bool = False
    """Whether it claims nothing more: it drains, or is to be replaced."""
    killed_for: dict[Fence, tuple[AttemptEnd, float]] = field(default_factory=dict)
    """The endings of the attempts for which the process was killed, and after how many seconds."""
    killed_because: str = ""
    fenced: bool = False
    seen_worker: int = 0
    stale_since: float = 0.0

    def reset(self) -> None:
        """Prepare the slot for the next process, after this one has exited and is reported."""
        self.pid, self.pipe = 0, None
        self.killed_for, self.killed_because, self.fenced = {}, "", False
        self.leaving = False
        self.seen_worker, self.stale_since = 0, 0.0
        self.slot.clear()

    def kill(self, reason: str) -> None:
        """Kill the process and the processes of its handlers."""
        self.killed_because = reason
        kill(self.pid)

    def pause_before_restart(self) -> None:
        """Set the pause before the restart: none, unless the process keeps dying early."""
        now = time.monotonic()
        self.quick_deaths = self.quick_deaths + 1 if now - self.started < QUICK_DEATH else 0
        if self.quick_deaths > 1:
            self.start_at = now + min(0.5 * 2.0**self.quick_deaths, LONGEST_PAUSE)

    def crash_message(self, worker: int, started_jobs: list[StartedJob], status: int) -> Message:
        """The message from which the heartbeat settles the jobs of the dead process."""
        reason = self.killed_because or f"its process ended with {describe_exit(status)}"
        return {
            "type": MessageType.RECOVER,
            "worker": worker,
            # Jobs of its previous worker are settled by the workers that took them over.
            "outcomes": [
                (entry.fence, *self._ending_of(entry))
                for entry in started_jobs
                if entry.worker == worker
            ],
            "reason": reason,
        }

    def _ending_of(self, entry: StartedJob) -> tuple[AttemptEnd, float]:
        if entry.fence in self.killed_for:
            return self.killed_for[entry.fence]
        # A finished job did not crash it, and an isolated one has its own process.
        if entry.finished or entry.alone or self.killed_because:
            return AttemptEnd.RELEASED, 0.0
        return AttemptEnd.LOST, 0.0


@dataclass(slots=True)
class IsolatedChild:
    """A child that runs one job for a worker process. ``max_rss`` is in megabytes. ``end``,
    ``reason`` and ``seconds`` are the ending of its job, if the child was killed for it."""

    child: WorkerProcessHandle
    pid: int
    pipe: MessagePipe
    index: int
    job: int
    max_rss: int | None = None
    cancel_seen: float = 0.0
    forced: bool = False
    """Whether it was woken to stop by force."""
    end: AttemptEnd | None = None
    orphaned: bool = False
    """Whether it was killed because its worker process has exited."""
    reason: str = ""
    seconds: float = 0.0

    @property
    def is_wanted(self) -> bool:
        return self.end is None and not self.orphaned

    def kill(self, end: AttemptEnd, seconds: float = 0.0, reason: str = "") -> None:
        """Kill it. Its job has this ending."""
        self.end, self.seconds, self.reason = end, seconds, reason
        kill(self.pid)

    def reported_settled(self) -> bool:
        """Whether the child reported that its job is settled, before it exited."""
        try:
            message = self.pipe.receive(0)
        except EOFError:
            return False
        if message is None:
            return False
        if message["type"] is MessageType.NEVER_BEGAN:
            self.end, self.reason = AttemptEnd.NEVER_BEGAN, message["reason"]
            return False
        if message["type"] is not MessageType.SETTLED:
            refuse(message)
        return True
