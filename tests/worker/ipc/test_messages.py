"""A word between processes that nobody knows is an error, and no ordinary end of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from typing import Any

import pytest

from django_jobs.domain.outcomes import FORCED, Cancelled, Lost, Released, TimedOut
from django_jobs.worker.execution.failures import outcome_of_ending
from django_jobs.worker.execution.isolation import Orders
from django_jobs.worker.ipc.pipes import AttemptEnd, MessagePipe, MessageType, UnexpectedMessage
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options, QueueShare
from django_jobs.worker.process.worker_process import WorkerProcess
from django_jobs.worker.supervisor.process_tree import IsolatedChild, WorkerProcessHandle
from django_jobs.worker.supervisor.supervisor import Supervisor
from tests.patience import PATIENCE


@pytest.fixture
def pipe() -> Iterator[tuple[MessagePipe, MessagePipe]]:
    """Both ends."""
    first, second = Pipe()
    ends = MessagePipe(first), MessagePipe(second)
    yield ends
    for end in ends:
        end.close()


def test_each_end_of_an_attempt_has_its_outcome() -> None:
    assert {end: outcome_of_ending(end, "why", 3.0) for end in AttemptEnd} == {
        AttemptEnd.LOST: Lost(reason="why"),
        AttemptEnd.CRASHED: Lost(reason="why", alone=True),
        AttemptEnd.TIMED_OUT: TimedOut(seconds=3.0),
        AttemptEnd.SILENT: TimedOut(seconds=3.0, silent=True),
        AttemptEnd.CANCELLED: Cancelled(reason="cancelled while running"),
        AttemptEnd.FORCED: FORCED,
        AttemptEnd.NEVER_BEGAN: Released(reason="why", began=False),
        AttemptEnd.RELEASED: Released(reason="why"),
    }


def test_an_unknown_ending_is_an_error() -> None:
    misspelt: Any = "crashd"
    with pytest.raises(AssertionError, match="crashd"):
        outcome_of_ending(misspelt, "why", 0.0)
    with pytest.raises(ValueError, match="crashd"):
        AttemptEnd(misspelt)


@pytest.mark.parametrize("type", MessageType)
def test_a_message_arrives_as_it_was_sent(
    pipe: tuple[MessagePipe, MessagePipe], type: MessageType
) -> None:
    ours, theirs = pipe
    ours.send(type=type, worker=7, end=AttemptEnd.LOST)
    assert theirs.receive(PATIENCE) == {"type": type, "worker": 7, "end": AttemptEnd.LOST}


def test_an_unknown_message_is_refused_by_the_pipe(pipe: tuple[MessagePipe, MessagePipe]) -> None:
    ours, theirs = pipe
    unknown: Any = "drian"
    ours.send(type=unknown, worker=7)
    with pytest.raises(UnexpectedMessage, match=r"'drian', 'worker': 7"):
        theirs.receive(PATIENCE)


def receivers() -> dict[str, Callable[[MessagePipe, MessagePipe, MessageType], object]]:
    """By name, what hands a message to each kind of process."""

    def worker(ours: MessagePipe, theirs: MessagePipe, type: MessageType) -> object:
        options = Options(queues=(QueueShare(name="default"),))
        WorkerProcess(theirs, Scoreboard(1).slots[0], options)._obey({"type": type})
        return None

    def supervisor(ours: MessagePipe, theirs: MessagePipe, type: MessageType) -> object:
        made = Supervisor(Options(queues=()))
        try:
            made._obey(theirs, {"type": type})
        finally:
            made._tree.close_all()
        return None

    def isolated_job(ours: MessagePipe, theirs: MessagePipe, type: MessageType) -> object:
        ours.send(type=type)
        return Orders(theirs).stopping()

    def end_of_an_isolated_job(ours: MessagePipe, theirs: MessagePipe, type: MessageType) -> object:
        ours.send(type=type)
        child = WorkerProcessHandle(slot=Scoreboard(1).slots[0])
        return IsolatedChild(child=child, pid=71, pipe=theirs, index=0, job=1).reported_settled()

    return {one.__name__: one for one in (worker, supervisor, isolated_job, end_of_an_isolated_job)}


@pytest.mark.parametrize("receiver", receivers())
def test_a_message_for_another_process_is_refused(
    pipe: tuple[MessagePipe, MessagePipe], receiver: str
) -> None:
    with pytest.raises(UnexpectedMessage, match=r"unexpected message: .*quit"):
        receivers()[receiver](*pipe, MessageType.QUIT)
