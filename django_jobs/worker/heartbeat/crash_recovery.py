"""The thread of the heartbeat process that settles the jobs of dead worker processes."""

from __future__ import annotations

import logging
import threading
import time
from queue import SimpleQueue

from ...lifecycle import reaping
from ...lifecycle.settling import Settled
from ..connections import close_others, drop_connection, own_connection, retry_while_disconnected
from ..events import emit, emit_settled, emit_throttled
from ..execution.failures import outcome_of_ending
from ..ipc.pipes import AttemptEnd, Message, MessagePipe, MessageType
from ..statement_timeout import StatementTimedOut, StatementTimeout


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
        """Settle the jobs of this process soon."""
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
        """Settle the jobs. While the database is away, retries for as long as the message
        allows."""
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
                give_up=lambda: time.monotonic() > until,
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
