"""The thread of the heartbeat process that settles what a dead sibling held."""

from __future__ import annotations

import logging
import threading
import time
from queue import SimpleQueue

from ...lifecycle import reaping
from ...lifecycle.settling import Settled
from ..connections import drop_connection, own_connection, retry_while_disconnected
from ..events import say, say_rarely, tell
from ..execution.failures import outcome_of_ending
from ..ipc.messages import AttemptEnd, Verb
from ..ipc.pipes import Link, Message
from ..statement_timeout import StatementTimedOut, StatementTimeout


class Burials:
    """Takes the supervisor's word of the dead, one after the other, and says when it is done.

    It has a connection only while there is something to settle: those of the dead process are free
    then.
    """

    def __init__(self, link: Link) -> None:
        self.deadline = StatementTimeout()
        self.thread = threading.Thread(target=self._run, name="django_jobs-burials", daemon=True)
        self._link = link
        self._waiting: SimpleQueue[Message] = SimpleQueue()

    def add(self, message: Message) -> None:
        """Settle this one soon."""
        self._waiting.put(message)

    def _run(self) -> None:
        own_connection()
        while True:
            message = self._waiting.get()
            try:
                self._bury(message)
            except Exception as error:  # what is left of it is for whoever reaps
                say("burial_failed", logging.ERROR, worker=message["worker"], error=repr(error))
            self._link.send(verb=Verb.BURIED, worker=message["worker"])
            if self._waiting.empty():
                drop_connection()

    def _bury(self, message: Message) -> None:
        """While the database is away, try for as long as the message says."""
        worker, reason = message["worker"], message["reason"]
        outcomes = {
            int(job): outcome_of_ending(AttemptEnd(end), reason, seconds)
            for job, (end, seconds) in message["outcomes"].items()
        }
        until = time.monotonic() + message["patience"]

        def settle() -> list[Settled] | None:
            return retry_while_disconnected(
                lambda: reaping.bury(worker, outcomes, reason=reason, status=message["status"]),
                what="settle what a dead process held",
                give_up=lambda: time.monotonic() > until,
                deadline=self.deadline,
            )

        while True:
            try:
                tell(settle() or ())
                return
            except StatementTimedOut:
                if time.monotonic() > until:
                    raise
                say_rarely("burial_blocked", logging.WARNING, worker=worker)
