"""The process that renews the leases of the worker processes.

It never runs a handler, so no handler can block it by holding the GIL. Its main thread only renews
leases. Crash recovery, maintenance tasks and schedules, which may have to wait for a lock, have
other threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from queue import SimpleQueue

from ...domain.maintenance import MaintenanceTask
from ...domain.numbers import clock_skew
from ...lifecycle import reaping, workers
from ...lifecycle.settling import Settled
from ...models.database import DATABASE_ERRORS
from ..connections import (
    close_others,
    drop_connection,
    make_room_by,
    own_connection,
    ping,
    retry_while_disconnected,
)
from ..events import emit, emit_settled, emit_throttled
from ..execution.failures import outcome_of_ending
from ..ipc.pipes import AttemptEnd, Message, MessagePipe, MessageType, kill, refuse
from ..ipc.scoreboard import Scoreboard, WorkerSlot
from ..meters import resident_megabytes
from ..options import Options
from ..statement_timeout import StatementTimedOut, StatementTimeout
from .upkeep import Look, Upkeep


class CrashRecovery:
    """Settles the jobs of crashed worker processes in the order the supervisor reports them, and
    acknowledges each. It has a connection only while there are jobs to settle, because those of the
    dead process are free then."""

    def __init__(self, pipe: MessagePipe) -> None:
        self.deadline = StatementTimeout()
        self.thread = threading.Thread(
            target=self._run, name="django_jobs-crash-recovery", daemon=True
        )
        self._pipe = pipe
        self._waiting: SimpleQueue[Message] = SimpleQueue()

    def add(self, message: Message) -> None:
        self._waiting.put(message)

    def _run(self) -> None:
        own_connection()
        while True:
            message = self._waiting.get()
            try:
                self._recover(message)
            except Exception as error:  # the reaper settles the rest
                emit(
                    "crash_recovery_failed",
                    logging.ERROR,
                    worker=message["worker"],
                    error=repr(error),
                )
            self._pipe.send(type=MessageType.RECOVERED, worker=message["worker"])
            if self._waiting.empty():
                drop_connection()
            close_others()

    def _recover(self, message: Message) -> None:
        """Settle the jobs. While the database is away, retries as long as the message allows."""
        worker, reason = message["worker"], message["reason"]
        outcomes = {
            (job, attempt, holder): outcome_of_ending(AttemptEnd(end), reason, seconds)
            for (job, attempt, holder), end, seconds in message["outcomes"]
        }
        until = time.monotonic() + message["patience"]

        def settle() -> list[Settled] | None:
            return retry_while_disconnected(
                lambda: reaping.recover_process(
                    worker, outcomes, reason=reason, status=message["status"]
                ),
                what="settle the jobs of a dead process",
                until=until,
                deadline=self.deadline,
            )

        while True:
            try:
                emit_settled(settle() or ())
                return
            except StatementTimedOut:
                if time.monotonic() > until:
                    raise
                emit_throttled("crash_recovery_blocked", logging.WARNING, worker=worker)


LONGEST_ROUND = 1.0
"""Seconds. The supervisor considers a heartbeat process hung that takes longer."""


def run(
    pipe: MessagePipe,
    scoreboard: Scoreboard,
    options: Options,
    tasks: Sequence[MaintenanceTask],
    look: Look | None = None,
) -> int:
    """Renew leases until the supervisor sends QUIT or exits."""
    make_room_by(scoreboard.status.ask_for_room, scoreboard.status.ask_for_idle)
    own_connection()
    upkeep = Upkeep(tasks, look, scoreboard, options)
    upkeep.thread.start()
    recovery = CrashRecovery(pipe)
    recovery.thread.start()
    leases = Leases(pipe, scoreboard, options)
    beat_at = 0.0
    while True:
        scoreboard.status.beat()
        now = time.monotonic()
        if now >= beat_at:
            scoreboard.status.is_renewing = True
            beat_at = now + (options.beat if leases.renew() else min(options.beat, 0.5))
            scoreboard.status.is_renewing = False
            scoreboard.status.beat()
        for deadline in (upkeep.deadline, recovery.deadline):
            deadline.enforce()  # a cancel request takes a second if the server does not answer
            scoreboard.status.beat()
        try:
            message = pipe.receive(min(max(beat_at - time.monotonic(), 0.0), LONGEST_ROUND))
        except EOFError:  # the supervisor has exited; its workers too, but not their children
            for pid in (pid for slot in scoreboard.slots for pid in slot.processes()):
                kill(pid)
            return 0
        if message is None:
            continue
        match message["type"]:
            case MessageType.RECOVER:
                recovery.add(message)
            case MessageType.QUIT:
                return 0
            case _:
                refuse(message)


def load_of(slot: WorkerSlot, worker: int) -> workers.Load:
    """What the process of ``slot`` uses and runs as ``worker``: up to
    ``workers.MOST_STARTED`` jobs, the oldest first."""
    now = time.monotonic()
    entries = (
        entry for entry in slot.started_jobs() if entry.worker == worker and not entry.finished
    )
    oldest = sorted(entries, key=lambda entry: entry.started)[: workers.MOST_STARTED]
    return workers.Load(
        rss_mb=resident_megabytes(slot.process),
        started=[
            (
                entry.job,
                round(max(now - entry.started, 0.0), 1),
                resident_megabytes(entry.child) if entry.alone else None,
            )
            for entry in oldest
        ],
        runs=slot.runs,
        failed=slot.failed_runs,
        listens=slot.listens,
    )


class Leases:
    """The leases of all workers of the tree, and the last heartbeat that was written for each."""

    def __init__(self, pipe: MessagePipe, scoreboard: Scoreboard, options: Options) -> None:
        self._pipe = pipe
        self._scoreboard = scoreboard
        self._options = options
        self._beats: dict[int, datetime] = {}
        self._clock_skew: float | None = None

    def renew(self) -> bool:
        """Renew leases, pass on operators' requests. Returns False if it has to be repeated."""
        status = self._scoreboard.status
        slots = {slot.worker: slot for slot in self._scoreboard.slots if slot.worker}
        if not slots and status.is_connected:
            return True
        asked_at = time.monotonic()
        seen_at = status.schedules_seen_at
        looked_ago = asked_at - seen_at if seen_at else None
        try:
            if not status.is_connected:
                ping()
                status.is_connected = True
            failures = {worker: slot.claim_failures for worker, slot in slots.items()}
            loads = {worker: load_of(slot, worker) for worker, slot in slots.items()}
            before = time.time()
            alive = workers.renew(
                list(slots),
                self._options.lease,
                looked_ago,
                self._beats,
                failures,
                loads,
                self._clock_skew,
            )
            self._compare_clocks(before, alive, time.time())
            blocked = self._note(slots, alive, asked_at)
            if cancelled := [worker for worker, renewal in alive.items() if renewal.cancel_asked]:
                for worker, job, force in workers.cancels_asked(cancelled):
                    slots[worker].ask_cancel(job, force)
            for worker, renewal in alive.items():
                if renewal.inspection_asked:
                    slots[worker].ask_inspection()
                if not renewal.holds_jobs:
                    slots[worker].empty_at = asked_at
        except DATABASE_ERRORS as error:
            drop_connection()
            status.is_connected = False  # a process that starts now could not keep its lease
            emit_throttled("beat_failed", logging.WARNING, error=f"{type(error).__name__}: {error}")
            return False
        for worker, renewal in alive.items():
            if renewal.drain_requested:
                self._pipe.send(type=MessageType.DRAIN, worker=worker)
        return not blocked

    def _compare_clocks(
        self, before: float, alive: dict[int, workers.Renewal], after: float
    ) -> None:
        """Note how far the clock of this host is off. The next renewal writes it."""
        beats = (renewal.heartbeat_at for renewal in alive.values())
        there = next((beat.timestamp() for beat in beats if beat is not None), None)
        if there is not None:
            self._clock_skew = clock_skew(before, there, after)

    def _note(
        self, slots: dict[int, WorkerSlot], alive: dict[int, workers.Renewal], asked_at: float
    ) -> bool:
        """Note renewed and lost leases. Returns whether a lock kept one from being renewed."""
        beats: dict[int, datetime] = {}
        blocked = False
        for worker, slot in slots.items():
            if worker not in alive:
                slot.lose_lease(worker)
            elif (beat := alive[worker].heartbeat_at) is not None:
                slot.renewed(worker, asked_at + self._options.lease)
                beats[worker] = beat
            else:
                blocked = True
                emit_throttled("renewal_blocked", logging.WARNING, worker=worker)
                if worker in self._beats:
                    beats[worker] = self._beats[worker]
        self._beats = beats
        return blocked
