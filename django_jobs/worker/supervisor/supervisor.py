"""The root of the process tree: signals, restarts, hard time limits.

It has one thread and no connection to the database, and never runs a handler.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from collections.abc import Sequence

from ...domain.maintenance import MaintenanceTask
from ...signals import process_ended, process_started
from ..connections import signal_process
from ..events import emit
from ..heartbeat.upkeep import Look
from ..ipc.pipes import AttemptEnd, Message, MessagePipe, MessageType, describe_exit, kill, refuse
from ..ipc.scoreboard import StartedJob
from ..meters import usage_of
from ..options import FORCED, RECYCLE, Options
from ..timeouts.limits import STOP_SIGNAL
from .process_tree import IsolatedChild, ProcessTree, WorkerProcessHandle
from .watchdog import TICK, Watchdog

STOP_GRACE = 0.5
"""Seconds from the stop that is raised in handlers to the kill."""

OVERDUE = "jobs did not end when they were stopped; declare their handlers isolated=True"
SHUTDOWN_SECONDS = 2.0
"""Seconds for the heartbeat to settle the jobs of killed processes at the end."""


class Supervisor:
    """Runs the tree until it is drained. Call :meth:`run` once, in a process without threads."""

    def __init__(
        self, options: Options, tasks: Sequence[MaintenanceTask] = (), look: Look | None = None
    ) -> None:
        self._options = options
        self._tree = ProcessTree(options, tasks, look)
        self._watchdog = Watchdog(self._tree, options.lease)
        self._unrecovered: dict[int, Message] = {}
        self._draining = False
        self._stop_at = float("inf")
        self._kill_at = float("inf")
        self._forced = False
        self._heartbeat_at = self._health_at = 0.0

    def run(self) -> int:
        """Start all processes, replace those that exit, drain on a signal. Returns an exit code."""
        signal_process(process_started, "jobworker")
        self._tree.catch_signals()
        gc.freeze()  # children share the memory pages of the loaded code
        emit("supervisor_started", logging.INFO, pid=os.getpid(), processes=self._options.processes)
        while True:
            now = self._tree.scoreboard.status.turned_at = time.monotonic()
            self._start_health_server(now)
            self._start_heartbeat(now)
            self._start_children(now)
            if self._nothing_left():
                break
            self._wait(now)
            self._reap_children()
            self._look(time.monotonic())
        self._shut_down_heartbeat()
        code = FORCED if self._forced else 0
        emit("supervisor_stopped", logging.INFO, pid=os.getpid(), exit_code=code)
        signal_process(process_ended, "jobworker")
        return code

    def _start_children(self, now: float) -> None:
        for child in self._startable():
            if now >= child.start_at:
                self._tree.start(child)

    def _startable(self) -> list[WorkerProcessHandle]:
        # A new process would end the burst before it can see the jobs of the dead one.
        if self._options.burst and self._unrecovered:
            return []
        return [child for child in self._tree.children if child.wanted and not child.pid]

    def _nothing_left(self) -> bool:
        return not any(child.pid or child.wanted for child in self._tree.children)

    def _wait(self, now: float) -> None:
        children = self._tree.children
        urgent = any(child.slot.watched for child in children)
        until = min(
            [now + (TICK if urgent else 1.0), self._stop_at, self._kill_at]
            + [child.start_at for child in self._startable()]
            + [self._watchdog.next_look(child, now) for child in children if child.slot.worker]
        )
        for key, _ in self._tree.selector.select(max(until - now, 0.0)):
            if key.fileobj is self._tree.woken:
                self._handle_signals()
            elif isinstance(key.fileobj, MessagePipe):
                self._receive(key.fileobj)

    def _handle_signals(self) -> None:
        try:
            numbers = self._tree.woken.recv(4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._drain(signal.Signals(number).name)

    def _drain(self, why: str) -> None:
        if self._draining:
            emit("second_signal", logging.WARNING, signal=why)
            self._kill_all("released by a second signal")
            return
        self._draining = self._tree.scoreboard.status.draining = True
        emit("draining", logging.INFO, signal=why, timeout=self._options.drain_timeout)
        self._stop_at = time.monotonic() + self._options.drain_timeout
        for child in self._tree.children:
            child.wanted = False
            self._send_drain(child, why)

    def _receive(self, pipe: MessagePipe) -> None:
        try:
            message = pipe.receive(0)
        except EOFError:
            self._tree.forget(pipe)  # waitpid reports its exit
            return
        if message is not None:
            self._obey(pipe, message)

    def _obey(self, pipe: MessagePipe, message: Message) -> None:
        match message["type"]:
            case MessageType.RECOVERED:
                self._unrecovered.pop(message["worker"], None)
            case MessageType.DRAIN:
                for child in self._tree.children:
                    if child.slot.worker == message["worker"]:  # and not that of its successor
                        self._drain_child(child)
            case MessageType.RECYCLES:
                self._send_drain(self._tree.child_of(pipe))
            case MessageType.INSPECT:
                child = self._tree.child_of(pipe)
                entry = child.slot.entries[message["index"]]
                if (isolated := self._tree.isolated_child(child, entry)) is not None:
                    os.kill(isolated.pid, STOP_SIGNAL)
            case MessageType.ISOLATE:
                child = self._tree.child_of(pipe)
                self._tree.isolate(child, message)
                if child.leaving:
                    self._send_drain(child)  # requested just before the drain
                if self._forced:
                    self._send_stop()  # or before the stop
            case _:
                refuse(message)

    def _drain_child(self, child: WorkerProcessHandle) -> None:
        if child.wanted and not child.asked_to_drain:
            emit("draining", logging.INFO, worker=child.slot.worker, asked="by an operator")
            child.asked_to_drain = True
            self._send_drain(child)

    def _send_drain(self, child: WorkerProcessHandle, reason: str = "") -> None:
        """Let it drain. The reason is empty if it knows it, or if its row has it."""
        child.leaving = True
        isolated = self._tree.isolated_for(child)
        for pipe in (child.pipe, *(isolated_child.pipe for isolated_child in isolated)):
            if pipe is not None:
                pipe.send(type=MessageType.DRAIN, reason=reason)

    def _reap_children(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            kill(pid)  # processes of its handler must not outlive the attempt
            if pid in self._tree.isolated:
                self._isolated_ended(self._tree.isolated.pop(pid), status, usage_of(usage))
            elif pid == self._tree.heartbeat_pid:
                self._heartbeat_died(status)
            elif pid == self._tree.health_pid:
                emit("health_server_died", logging.ERROR, reason=describe_exit(status))
                self._tree.health_pid = 0
            else:
                for child in self._tree.children:
                    if child.pid == pid:
                        self._child_died(child, status)

    def _isolated_ended(
        self, isolated: IsolatedChild, status: int, usage: tuple[float, int]
    ) -> None:
        settled = isolated.reported_settled()
        isolated.pipe.close()
        if isolated.orphaned:
            return
        end = None if settled else isolated.end or AttemptEnd.CRASHED
        reason = isolated.reason or f"its process ended with {describe_exit(status)}"
        if end is AttemptEnd.CRASHED:
            attempt = isolated.child.slot.entries[isolated.index].attempt
            fields = {"job_id": isolated.job, "attempt": attempt, "reason": reason}
            emit("isolated_job_died", logging.WARNING, **fields)
        if isolated.child.pipe is not None:
            isolated.child.pipe.send(
                type=MessageType.ISOLATED,
                index=isolated.index,
                end=end,
                reason=reason,
                seconds=isolated.seconds,
                usage=usage,
            )

    def _heartbeat_died(self, status: int) -> None:
        emit("heartbeat_died", logging.ERROR, reason=describe_exit(status))
        self._tree.close(self._tree.heartbeat_pipe)
        self._tree.heartbeat_pid = 0

    def _start_health_server(self, now: float) -> None:
        port = self._options.health
        if port is not None and not self._tree.health_pid and now >= self._health_at:
            self._health_at = now + 1.0  # no fork loop
            self._tree.start_health_server(port)

    def _start_heartbeat(self, now: float) -> None:
        if self._tree.heartbeat_pid or now < self._heartbeat_at:
            return
        self._heartbeat_at = now + 1.0  # no fork loop
        self._tree.start_heartbeat()
        for message in self._unrecovered.values():
            self._send_to_heartbeat(message)

    def _child_died(self, child: WorkerProcessHandle, status: int) -> None:
        self._tree.close(child.pipe)
        started_jobs = child.slot.started_jobs()
        worker, pid = child.slot.worker, child.pid
        for isolated in self._tree.isolated_for(child):
            isolated.orphaned = True
            kill(isolated.pid)
        code = os.waitstatus_to_exitcode(status)
        if worker:
            self._recover(child, worker, started_jobs, status)
        because, guilty = child.killed_because, sorted(job for job, _, _ in child.killed_for)
        child.reset()
        # An orderly exit has closed the row; os._exit(0) in a handler has not.
        in_order = code in (0, RECYCLE) and not worker
        if child.asked_to_drain:
            self._replace_drained(child)
        elif in_order and code == 0:
            child.wanted = False
        if in_order:
            child.quick_deaths = 0
        else:
            child.pause_before_restart()
            if because:
                fields = {"pid": pid, "worker": worker, "reason": OVERDUE if guilty else because}
                emit("process_killed", logging.WARNING, **fields, overdue=guilty)
            else:
                end = describe_exit(status)
                emit("process_died", logging.ERROR, pid=pid, worker=worker, reason=end)

    def _replace_drained(self, child: WorkerProcessHandle) -> None:
        """Replace drained processes, unless all were asked to drain: then the command ends."""
        child.wanted = any(
            other.wanted and not other.asked_to_drain for other in self._tree.children
        )
        child.asked_to_drain = not child.wanted

    def _recover(
        self, child: WorkerProcessHandle, worker: int, started_jobs: list[StartedJob], status: int
    ) -> None:
        message = child.crash_message(worker, started_jobs, status) | {
            "status": "stopped" if self._draining else "lost",
            "patience": SHUTDOWN_SECONDS if self._draining else self._options.lease,
        }
        self._unrecovered[worker] = message
        self._send_to_heartbeat(message)

    def _send_to_heartbeat(self, message: Message) -> None:
        if self._tree.heartbeat_pid and self._tree.heartbeat_pipe is not None:
            self._tree.heartbeat_pipe.send(**message)

    def _look(self, now: float) -> None:
        if now >= self._kill_at:
            self._kill_all("the time to drain was over")
        elif now >= self._stop_at:
            self._stop_all(now)
        self._watchdog.look(now)

    def _stop_all(self, now: float) -> None:
        self._forced = True
        self._stop_at, self._kill_at = float("inf"), now + STOP_GRACE
        self._send_stop()
        for child in self._tree.children:
            child.killed_because = child.killed_because or "the time to drain was over"
            if child.pipe is not None:
                child.pipe.send(type=MessageType.STOP)

    def _send_stop(self) -> None:
        for isolated in self._tree.isolated.values():
            isolated.pipe.send(type=MessageType.STOP)
            os.kill(isolated.pid, STOP_SIGNAL)

    def _kill_all(self, reason: str) -> None:
        self._forced = True
        self._stop_at = self._kill_at = float("inf")
        for child in self._tree.children:
            if child.pid:
                child.kill(reason)

    def _shut_down_heartbeat(self) -> None:
        """Let the heartbeat settle the jobs of killed processes, then end it. If it has exited, the
        reaper settles them."""
        pipe = self._tree.heartbeat_pipe
        if self._tree.heartbeat_pid and pipe is not None:
            self._end_heartbeat(pipe)
        for pid in (*self._tree.isolated, *filter(None, [self._tree.health_pid])):
            kill(pid)
            os.waitpid(pid, 0)
        self._tree.close_all()

    def _end_heartbeat(self, pipe: MessagePipe) -> None:
        until = time.monotonic() + SHUTDOWN_SECONDS
        while self._unrecovered and time.monotonic() < until:
            try:
                message = pipe.receive(0.1)
            except EOFError:
                break
            if message is not None:
                self._obey(pipe, message)
        pipe.send(type=MessageType.QUIT)
        while time.monotonic() < until + 1.0:
            if os.waitpid(self._tree.heartbeat_pid, os.WNOHANG)[0]:
                break
            time.sleep(0.01)
        else:
            kill(self._tree.heartbeat_pid)
            os.waitpid(self._tree.heartbeat_pid, 0)
