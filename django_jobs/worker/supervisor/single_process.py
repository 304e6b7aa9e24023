"""``jobworker --no-fork``: worker, heartbeat and supervisor as threads of one process, for systems
without fork and for debuggers. No other process can kill its handlers."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from types import FrameType
from typing import NoReturn

from ...domain.maintenance import MaintenanceTask
from ...signals import process_ended, process_started
from ..connections import signal_process
from ..events import emit
from ..handlers.forking import start_afresh_in_forks
from ..health.server import HealthServer
from ..heartbeat import heartbeat
from ..heartbeat.upkeep import Look
from ..ipc.pipes import CRASHED, STOPS, MessagePipe, MessageType, flush, refuse, respected
from ..ipc.scoreboard import Scoreboard
from ..options import FORCED, Options, left_to_others
from ..process.worker_process import WorkerProcess
from .process_tree import WorkerProcessHandle
from .supervisor import SHUTDOWN_SECONDS, STOP_GRACE
from .watchdog import LOST_GRACE

TICK = 0.1
"""Seconds between two checks of signals and the lease."""

CANNOT = (
    "no handler can be killed: one that ignores the end of its time-out runs on, one that holds "
    "the interpreter's lock holds up the heartbeat, and a crash is noticed when the lease is over"
)


class SingleProcess:
    """A complete worker in the calling process. Call :meth:`run` once, on the main thread."""

    def __init__(
        self, options: Options, tasks: Sequence[MaintenanceTask] = (), look: Look | None = None
    ) -> None:
        self._options = options
        self._scoreboard = Scoreboard(1)
        self._child = WorkerProcessHandle(slot=self._scoreboard.slots[0])
        self._worker, workers_end = _pair()
        self._heartbeat, heartbeat_end = _pair()
        worker = WorkerProcess(workers_end, self._child.slot, options)
        self._threads = [
            threading.Thread(target=target, name=f"django_jobs-{name}", args=args, daemon=True)
            for name, target, args in (
                ("worker", worker.run, ()),
                (
                    "heartbeat",
                    heartbeat.run,
                    (heartbeat_end, self._scoreboard, options, tasks, look),
                ),
            )
        ]
        if options.health is not None:
            server = HealthServer(options.health, self._scoreboard, options.lease)
            self._threads.append(
                threading.Thread(target=server.run, name="django_jobs-health", daemon=True)
            )
        self._signals: list[int] = []
        self._draining = False
        self._code = 0
        self._stop_at = self._leave_at = float("inf")
        self._looked_at = self._lenient_until = 0.0

    def run(self) -> NoReturn:
        """Work until the process is drained, then exit: otherwise threads that wait for work, or
        handlers that do not end, would keep it alive."""
        start_afresh_in_forks()
        signal_process(process_started, "jobworker")
        for number in respected(STOPS):
            signal.signal(number, self._note)
        left_out = ", ".join(sorted(left_to_others())) or "none"
        emit("no_fork", logging.WARNING, pid=os.getpid(), cannot=CANNOT, not_claimed=left_out)
        for thread in self._threads:
            thread.start()
        worker, heartbeat_thread = self._threads[:2]
        while worker.is_alive():
            self._scoreboard.status.turned_at = time.monotonic()
            worker.join(TICK)
            while self._signals:
                self._drain(signal.Signals(self._signals.pop(0)).name)
            self._receive()
            self._look(time.monotonic())
        self._heartbeat.send(type=MessageType.QUIT)
        heartbeat_thread.join(SHUTDOWN_SECONDS)
        signal_process(process_ended, "jobworker")
        _exit(self._code)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _drain(self, why: str) -> None:
        if self._draining:
            emit("second_signal", logging.WARNING, signal=why)
            self._leave(FORCED, "released by a second signal")
        emit("draining", logging.INFO, signal=why, timeout=self._options.drain_timeout)
        self._draining = self._scoreboard.status.draining = True
        self._stop_at = time.monotonic() + self._options.drain_timeout
        self._worker.send(type=MessageType.DRAIN, reason=why)

    def _receive(self) -> None:
        """Handle a message. An operator's request to drain is repeated at each heartbeat."""
        while (message := self._heartbeat.receive(0)) is not None:
            if message["type"] is not MessageType.DRAIN:
                refuse(message)
            if not self._child.asked_to_drain:
                self._child.asked_to_drain = True
                emit("draining", logging.INFO, worker=message["worker"], asked="by an operator")
                self._worker.send(type=MessageType.DRAIN, reason="")

    def _look(self, now: float) -> None:
        if now >= self._leave_at:
            self._leave(FORCED, "the time to drain was over")
        if now >= self._stop_at:
            self._stop_at, self._leave_at = float("inf"), now + STOP_GRACE
            self._code = FORCED  # even if all handlers end
            self._worker.send(type=MessageType.STOP)
        if now - self._looked_at > 1.0:  # it was suspended, and its heartbeat too
            self._lenient_until = now + LOST_GRACE
        self._looked_at = now
        if now > self._lenient_until and self._lost(now):
            emit(
                "fenced", logging.ERROR, worker=self._child.slot.worker, reason="the lease is over"
            )
            self._worker.send(type=MessageType.STOP)
            time.sleep(max(min(STOP_GRACE, self._gone_by() - now), 0.0))
            self._leave(CRASHED, "its worker could not renew its lease and stopped it")

    def _lost(self, now: float) -> bool:
        """Whether jobs run here that other workers may start now, or soon."""
        slot = self._child.slot
        grace = min(STOP_GRACE, self._options.lease / 10)
        over = now >= self._gone_by() - grace or slot.lease_lost
        return any(
            over or entry.worker != slot.worker
            for entry in slot.started_jobs()
            if not entry.finished
        )

    def _gone_by(self) -> float:
        """When the process has to exit, so that no job runs here after the lease."""
        return self._child.slot.fence_at(self._options.lease)

    def _leave(self, code: int, reason: str) -> NoReturn:
        """Release the running jobs and exit. If there is no time, because the lease is over or
        lost, they are left to the reaper, and run until the exit."""
        slot, now = self._child.slot, time.monotonic()
        patience = min(SHUTDOWN_SECONDS, self._gone_by() - now)
        if slot.worker and patience > 0 and not slot.lease_lost:
            self._child.killed_because = reason
            crash = self._child.crash_message(slot.worker, slot.started_jobs(), 0)
            self._heartbeat.send(**crash | {"status": "stopped", "patience": patience})
            while (left := now + patience - time.monotonic()) > 0:
                message = self._heartbeat.receive(left)
                if message is not None and message["type"] is MessageType.RECOVERED:
                    break
        _exit(code)


def _exit(code: int) -> NoReturn:
    flush()
    os._exit(code)


def _pair() -> tuple[MessagePipe, MessagePipe]:
    ours, theirs = Pipe(duplex=True)
    return MessagePipe(ours), MessagePipe(theirs)
