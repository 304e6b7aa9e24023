"""Forks the children of the supervisor, and opens and closes the pipes to them."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...domain.maintenance import MaintenanceTask
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
    fork,
    ignore_signal,
    respected,
)
from ..ipc.scoreboard import Scoreboard, StartedJob
from ..options import HealthPort, Options
from ..process import worker_process
from .children import IsolatedChild, WorkerProcessHandle


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
