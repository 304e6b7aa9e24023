"""Runs one job in a child process, so that a crash affects no other job."""

from __future__ import annotations

import os
import signal
import threading
import time
from _thread import start_new_thread
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...conf import conf
from ...exceptions import LeaseLost
from ...lifecycle import progress
from ...lifecycle.claiming import claimed_by
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.settling import Settled
from ...lifecycle.settling_rows import note_triggers, settle_with_fallback
from ...models.database import DATABASE_ERRORS
from ...signals import process_ended, process_started
from ..connections import (
    drop_connection,
    is_out_of_connections,
    own_connection,
    retry_while_disconnected,
    signal_process,
)
from ..context.attempt import Attempt
from ..context.progress import Reporter
from ..events import emit_left_open, emit_settled
from ..handlers.connections import HandlerConnections
from ..handlers.forking import start_afresh_in_forks
from ..handlers.run_logs import keep_logs
from ..ipc.pipes import MessagePipe, MessageType, refuse
from ..ipc.scoreboard import WorkerSlot
from ..meters import ProcessMeter
from ..timeouts.limits import STOP_SIGNAL, SignalTimeouts
from . import handler_call
from .event_loop import HandlerLoop
from .interruption import bound
from .stacks import stack_of_tasks, stack_of_thread


def run(pipe: MessagePipe, slot: WorkerSlot, worker: int, job_id: int, index: int) -> int:
    """Run one claimed job, settle it, and report that on the pipe, because an exit code could be
    the handler's. The row is read again, so that only its id is sent through the pipe."""
    start_afresh_in_forks()
    keep_logs()
    slot.entries[index].child = os.getpid()
    signal_process(process_started, "isolated")
    try:
        _run(pipe, slot, worker, job_id, index)
    except NoConnectionLeft as error:
        pipe.send(type=MessageType.NEVER_BEGAN, reason=str(error))
    else:
        pipe.send(type=MessageType.SETTLED)
    signal_process(process_ended, "isolated")
    return 0


class NoConnectionLeft(Exception):
    """There was no connection to read the job with."""


def _read(worker: int, job_id: int) -> list[ClaimedJob]:
    """The job, if it still belongs to the worker. If the child waits too long for a connection, the
    job goes back, because another worker may have a free one."""
    try:
        note_triggers()
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
        attempt.end_statements = connections.cancel
        attempt.meter = ProcessMeter(counts_queries=conf().count_queries)
        connections.prepare()
        attempt.begin_isolated(index)
        loop = HandlerLoop()
        inspector = Inspector(attempt, loop)
        bound(
            attempt,
            timeouts=SignalTimeouts(orders.stop_requested, inspector.look),
            loop=loop,
            stopping=orders.stopping,
        )
        if attempt.run_async is not None:
            signal.signal(STOP_SIGNAL, inspector.look)
        try:
            outcome = handler_call.call(attempt)
        except LeaseLost:
            return
        finally:
            attempt.entry.finish()  # it has its result, and the rest has no time limit
            if connections.clean():
                emit_left_open(attempt.job)
            connections.reset()  # the job is settled in this session
        attempt.reporter.end(attempt, outcome)
        if isinstance(outcome, Settled):
            _report(attempt, [outcome])
            return
        ending = attempt.ending(outcome)
        ending.cancel_requested = attempt.entry.cancel_asked
        # Gives up only if the fence would refuse it. A job that was run and is still ours must not
        # be left unsettled: it would be given back as if it had never started.
        settled = retry_while_disconnected(
            lambda: settle_with_fallback([ending]),
            what="settle",
            give_up=lambda: slot.lease_lost or slot.worker != worker,
        )
        _report(attempt, settled or ())


def _report(attempt: Attempt, settled: Sequence[Settled]) -> None:
    if any(one.failed for one in settled):
        attempt.entry.fail()
    emit_settled(settled)


class Inspector:
    """Answers what the handler of this child is doing, in a thread that the signal starts: a thread
    that waits for questions would be in the way of a handler that forks."""

    def __init__(self, attempt: Attempt, loop: HandlerLoop) -> None:
        self._attempt = attempt
        self._loop = loop
        self._main = threading.get_ident()
        self._seen_at = 0.0

    def look(self, *signal: Any) -> None:
        """Start the answer, if it was asked for. Takes no lock, and raises nothing in the handler:
        if no thread can be started, the heartbeat asks again for a minute."""
        asked_at = self._attempt.slot.inspect_asked_at
        if asked_at > self._seen_at:
            with suppress(RuntimeError, MemoryError):
                start_new_thread(self._answer, ())
                self._seen_at = asked_at

    def _answer(self) -> None:
        job = self._attempt.job
        own_connection()
        try:
            for question in progress.asked([job.worker]):
                if (question.job, question.attempt) == (job.id, job.attempt):
                    ran = time.monotonic() - self._attempt.started
                    stack = self._stack()
                    progress.record(
                        question, process=os.getpid(), thread="MainThread", ran=ran, stack=stack
                    )
        except DATABASE_ERRORS:
            pass  # the heartbeat finds the question again
        finally:
            drop_connection()

    def _stack(self) -> str:
        loop = self._loop
        if tasks := loop.tasks_of():
            return stack_of_tasks(tasks, loop.current_task(), loop.thread_id)
        return stack_of_thread(self._main)


class Orders:
    """The supervisor's requests to this child: to drain, to stop. Both if that has exited."""

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
        """:meth:`stopping`, for a signal that may come while that is read; then it returns None."""
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
