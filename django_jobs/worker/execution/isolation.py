"""Runs one job in a child process, so that a crash affects no other job."""

from __future__ import annotations

import os
import threading

from ...exceptions import LeaseLost
from ...lifecycle.claiming import claimed_by
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.settling import Ending, Settled
from ...lifecycle.settling_rows import settle_with_fallback
from ...models.database import DATABASE_ERRORS
from ..connections import is_out_of_connections, retry_while_disconnected
from ..context.attempt import Attempt
from ..context.progress import Reporter
from ..events import emit_settled
from ..handlers.connections import HandlerConnections
from ..handlers.forking import start_afresh_in_forks
from ..ipc.messages import MessageType, refuse
from ..ipc.pipes import MessagePipe
from ..ipc.scoreboard import WorkerSlot
from ..meters import ProcessMeter
from ..timeouts.limits import SignalTimeouts
from . import handler_call
from .event_loop import HandlerLoop
from .interruption import bound


def run(pipe: MessagePipe, slot: WorkerSlot, worker: int, job_id: int, index: int) -> int:
    """Run one claimed job, settle it, and report that on the pipe, because an exit code could be
    the handler's. The row is read again, so that only its id is sent through the pipe."""
    start_afresh_in_forks()
    slot.entries[index].child = os.getpid()
    try:
        _run(pipe, slot, worker, job_id, index)
    except NoConnectionLeft as error:
        pipe.send(type=MessageType.NEVER_BEGAN, reason=str(error))
    else:
        pipe.send(type=MessageType.SETTLED)
    return 0


class NoConnectionLeft(Exception):
    """There was no connection to read the job with."""


def _read(worker: int, job_id: int) -> list[ClaimedJob]:
    """The job, if it still belongs to the worker. If the child waits too long for a connection, the
    job goes back, because another worker may have a free one."""
    try:
        return claimed_by(worker, [job_id])
    except DATABASE_ERRORS as error:
        if is_out_of_connections(error):
            raise NoConnectionLeft(str(error)) from None
        raise


def _run(pipe: MessagePipe, slot: WorkerSlot, worker: int, job_id: int, index: int) -> None:
    connections = HandlerConnections()
    with connections.in_use:  # a shortage in another thread here closes none of them
        jobs = retry_while_disconnected(lambda: _read(worker, job_id), what="read the job")
        if not jobs:
            return
        orders = Orders(pipe)
        attempt = Attempt(
            jobs[0], slot, Reporter(), stopping=orders.stopping, draining=orders.draining
        )
        attempt.meter = ProcessMeter()
        connections.prepare()
        attempt.begin_isolated(index)
        bound(
            attempt,
            timeouts=SignalTimeouts(orders.stop_requested),
            loop=HandlerLoop(),
            stopping=orders.stopping,
        )
        try:
            outcome = handler_call.call(attempt)
        except LeaseLost:
            return
        finally:
            attempt.entry.finish()  # it has its result, and the rest has no time limit
            connections.clean()
            connections.reset()  # the job is settled in this session
        attempt.reporter.end(attempt, outcome)
        if isinstance(outcome, Settled):
            emit_settled([outcome])
            return
        ending = Ending(
            attempt.job,
            outcome,
            started=attempt.started,
            cancel_requested=attempt.entry.cancel_asked,
            cost=attempt.cost(),
            traceparent=attempt.traceparent,
        )
        # Gives up only if the fence would refuse it. A job that was run and is still ours must not
        # be left unsettled: it would be given back as if it had never started.
        settled = retry_while_disconnected(
            lambda: settle_with_fallback([ending]),
            what="settle",
            give_up=lambda: slot.lease_lost or slot.worker != worker,
        )
        emit_settled(settled or ())


class Orders:
    """The requests of the supervisor to this child: first to drain, then to stop. If the supervisor
    has exited, both."""

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        self._received: set[MessageType] = set()
        self._reading = threading.Lock()

    def draining(self) -> bool:
        """Whether the handler should end where the next attempt can continue."""
        self._listen()
        return bool(self._received)

    def stopping(self) -> bool:
        """Whether the handler should end as soon as possible."""
        self._listen()
        return MessageType.STOP in self._received

    def stop_requested(self) -> bool | None:
        """:meth:`stopping`, for a signal that may arrive while that is being read. Returns None in
        this case."""
        return None if self._reading.locked() else self.stopping()

    def _listen(self) -> None:
        # If two threads read the pipe, one would wait for a message that the other has read.
        if MessageType.STOP in self._received or not self._reading.acquire(blocking=False):
            return
        try:
            while (message := self._pipe.receive(0)) is not None:
                if message["type"] not in (MessageType.DRAIN, MessageType.STOP):
                    refuse(message)
                self._received.add(message["type"])
        except EOFError:
            self._received.add(MessageType.STOP)
        finally:
            self._reading.release()
