"""A child that runs one job alone, so that what kills it harms nobody else."""

from __future__ import annotations

import os
import threading
import time

from ... import registry
from ...exceptions import LeaseLost
from ...lifecycle.claiming import claimed_by
from ...lifecycle.settling import Ending, Settled
from ...lifecycle.settling_rows import settle_readably
from ..connections import retry_while_disconnected
from ..context.progress import Reporter
from ..events import emit_settled
from ..handlers.connections import HandlerConnections
from ..handlers.forking import start_afresh_in_forks
from ..ipc.messages import Verb, refuse
from ..ipc.pipes import MessagePipe
from ..ipc.scoreboard import WorkerSlot
from ..timeouts.limits import SignalTimeouts
from . import attempt
from .attempt import ignore_progress
from .event_loop import HandlerLoop
from .interruption import Interruption, interruption_of


def run(pipe: MessagePipe, slot: WorkerSlot, worker: int, job_id: int, index: int) -> int:
    """Run one held job, settle it, and say so on the pipe: an exit code could be the handler's.

    The row is read anew, so that only its number has to come through the pipe.
    """
    start_afresh_in_forks()
    slot.begin_child(index, os.getpid())
    _run(pipe, slot, worker, job_id, index)
    pipe.send(verb=Verb.SETTLED)
    return 0


def _run(pipe: MessagePipe, slot: WorkerSlot, worker: int, job_id: int, index: int) -> None:
    connections = HandlerConnections()
    with connections.in_use:  # a shortage that another thread here meets closes none of them
        _run_on(connections, pipe, slot, worker, job_id, index)


def _run_on(
    connections: HandlerConnections,
    pipe: MessagePipe,
    slot: WorkerSlot,
    worker: int,
    job_id: int,
    index: int,
) -> None:
    held = retry_while_disconnected(lambda: claimed_by(worker, [job_id]), what="read the job")
    if not held:
        return
    job = held[0]
    loop = HandlerLoop()

    orders = Orders(pipe)
    reporter = Reporter()

    def should_stop() -> bool:
        return orders.stopping() or slot.cancel_asked(index) or slot.worker != worker

    connections.prepare()
    job_type = registry.find(job.job_type)
    started = time.monotonic()
    bounds = Interruption(None, ignore_progress, loop.run)
    if job_type is not None:
        deadline = 0.0 if job.timeout is None else started + job.timeout
        slot.begin(index, deadline, job_type.silence_timeout or 0.0)
        bounds = interruption_of(
            *(job, job_type, slot, index, started),
            timeouts=SignalTimeouts(orders.stop_requested),
            loop=loop,
            stopping=orders.stopping,
        )
    try:
        outcome = attempt.make(
            job,
            should_stop=should_stop,
            run_async=bounds.run_async,
            started=started,
            limit=bounds.limit,
            on_progress=bounds.on_progress,
            draining=orders.draining,
            reporter=reporter,
        )
    except LeaseLost:
        return
    finally:
        slot.finish(index)  # it has its result: what is left is not bounded by its times
        connections.clean()
    reporter.end(job, outcome)
    if isinstance(outcome, Settled):
        emit_settled([outcome])
        return
    ending = Ending(job, outcome, started=started, cancel_requested=slot.cancel_asked(index))
    # Only where nobody would take it any more. A job that was run and is still ours must not be
    # left unsettled: it would be given back as one that had never begun.
    settled = retry_while_disconnected(
        lambda: settle_readably([ending]),
        what="settle",
        give_up=lambda: slot.lease_lost or slot.worker != worker,
    )
    emit_settled(settled or ())


class Orders:
    """What the supervisor told this child: first to drain, then to stop. One that is gone says
    both."""

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        self._received: set[Verb] = set()
        self._reading = threading.Lock()

    def draining(self) -> bool:
        """Whether the handler should end where it loses nothing."""
        self._listen()
        return bool(self._received)

    def stopping(self) -> bool:
        """Whether the handler should end as soon as it can."""
        self._listen()
        return Verb.STOP in self._received

    def stop_requested(self) -> bool | None:
        """:meth:`stopping`, for a signal that may have come while that is being read; None then."""
        return None if self._reading.locked() else self.stopping()

    def _listen(self) -> None:
        # Of two threads that ask, one would wait for what the other has read.
        if Verb.STOP in self._received or not self._reading.acquire(blocking=False):
            return
        try:
            while (message := self._pipe.receive(0)) is not None:
                if message["verb"] not in (Verb.DRAIN, Verb.STOP):
                    refuse(message)
                self._received.add(message["verb"])
        except EOFError:
            self._received.add(Verb.STOP)
        finally:
            self._reading.release()
