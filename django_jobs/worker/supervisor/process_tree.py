"""The processes of the tree, as the supervisor forks, sees and kills them, and their pipes."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...domain.maintenance import MaintenanceTask
from ...lifecycle.job_columns import Fence
from ..execution import isolation
from ..health import server
from ..heartbeat import heartbeat
from ..heartbeat.upkeep import Look
from ..ipc.pipes import (
    STOPS,
    AttemptEnd,
    Message,
    MessagePipe,
    MessageType,
    describe_exit,
    fork,
    ignore_signal,
    kill,
    refuse,
    respected,
)
from ..ipc.scoreboard import Scoreboard, StartedJob, WorkerSlot
from ..options import HealthPort, Options
from ..process import worker_process

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


class ProcessTree:
    """All processes below the supervisor. Each child is forked here, and first closes the pipe ends
    of all others, so that each notices if the supervisor exits."""

    def __init__(
        self, options: Options, tasks: Sequence[MaintenanceTask], look: Look | None = None
    ) -> None:
        self._options = options
        self._tasks = tasks
        self._look = look
        self.scoreboard = Scoreboard(options.processes)
        self.children = [WorkerProcessHandle(slot=slot) for slot in self.scoreboard.slots]
        self.isolated: dict[int, IsolatedChild] = {}
        self.heartbeat_pid = 0
        self.heartbeat_pipe: MessagePipe | None = None
        self.health_pid = 0
        self._health_pipe: MessagePipe | None = None
        self.selector = selectors.DefaultSelector()
        self._handlers: dict[int, Any] = {}
        self.woken, self._waker = socket.socketpair()

    def catch_signals(self) -> None:
        """Make signals wake the selector through ``woken``."""
        self.woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (*respected(STOPS), signal.SIGCHLD):
            self._handlers[number] = signal.signal(number, ignore_signal)
        self.selector.register(self.woken, selectors.EVENT_READ)

    def start_heartbeat(self) -> None:
        """Fork the heartbeat process, unless there is no memory for it."""

        work = partial(
            heartbeat.run,
            scoreboard=self.scoreboard,
            options=self._options,
            tasks=self._tasks,
            look=self._look,
        )
        # It exits a moment after us, to end the processes that handlers started.
        try:
            self.heartbeat_pid, self.heartbeat_pipe = fork(work, self._ends(), outlives_us=True)
        except OSError:
            return
        self.scoreboard.status.beat()  # give it time for its first round
        self.selector.register(self.heartbeat_pipe, selectors.EVENT_READ)

    def start_health_server(self, port: HealthPort) -> None:
        """Fork the process that answers probes, unless there is no memory for it."""
        if self._health_pipe is not None:
            self._health_pipe.close()
            self._health_pipe = None
        work = partial(server.run, port=port, scoreboard=self.scoreboard, lease=self._options.lease)
        others = [end for end in self._ends() if end is not port.listener]
        with contextlib.suppress(OSError):
            self.health_pid, self._health_pipe = fork(work, others)

    def start(self, child: WorkerProcessHandle) -> None:
        work = partial(worker_process.run, slot=child.slot, options=self._options)
        try:
            child.pid, child.pipe = fork(work, self._ends())
        except OSError:
            child.start_at = time.monotonic() + 1.0
            return
        child.started, child.seen_worker = time.monotonic(), 0
        self.selector.register(child.pipe, selectors.EVENT_READ)

    def isolate(self, child: WorkerProcessHandle, message: Message) -> None:
        """Fork a child that runs one job of the requesting process."""
        assert child.pipe is not None
        job, worker, index = message["job"], message["worker"], message["index"]
        work = partial(isolation.run, slot=child.slot, worker=worker, job_id=job, index=index)
        try:
            pid, pipe = fork(work, self._ends())
        except (
            OSError
        ) as error:  # no memory or no process ids: retried later, or on another machine
            child.pipe.send(
                type=MessageType.ISOLATED,
                index=index,
                end=AttemptEnd.NEVER_BEGAN,
                reason=str(error),
                seconds=0.0,
                usage=(0.0, 0),
            )
            return
        self.isolated[pid] = IsolatedChild(
            child=child, pid=pid, pipe=pipe, index=index, job=job, max_rss=message["max_rss"]
        )

    def child_of(self, pipe: MessagePipe) -> WorkerProcessHandle:
        return next(child for child in self.children if child.pipe is pipe)

    def isolated_for(self, child: WorkerProcessHandle) -> list[IsolatedChild]:
        return [isolated for isolated in self.isolated.values() if isolated.child is child]

    def isolated_child(self, child: WorkerProcessHandle, entry: StartedJob) -> IsolatedChild | None:
        """The isolated child of ``child`` for this entry on the scoreboard; None if it has exited
        or was killed. The entry identifies it, because a lost and a new attempt of one job may both
        have a child."""
        for isolated in self.isolated_for(child):
            if isolated.index == entry.index and isolated.is_wanted:
                return isolated
        return None

    def close(self, pipe: MessagePipe | None) -> None:
        if pipe is not None:
            self.forget(pipe)
            pipe.close()

    def forget(self, pipe: MessagePipe) -> None:
        if pipe in {key.fileobj for key in self.selector.get_map().values()}:
            self.selector.unregister(pipe)

    def close_all(self) -> None:
        """Close everything, and restore the signal handlers of the command's caller."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for end in self._ends():
            end.close()

    def _ends(self) -> list[MessagePipe | socket.socket | selectors.BaseSelector]:
        pipes = [child.pipe for child in self.children] + [self.heartbeat_pipe, self._health_pipe]
        pipes += [isolated.pipe for isolated in self.isolated.values()]
        port = self._options.health
        listener = None if port is None else port.listener
        ends = (*pipes, listener, self.woken, self._waker, self.selector)
        return [end for end in ends if end is not None]
