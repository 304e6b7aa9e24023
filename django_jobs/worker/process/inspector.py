"""Answers what the attempts of this process are doing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from ...lifecycle import progress
from ..context.attempt import Attempt
from ..events import emit_throttled
from ..execution.event_loop import HandlerLoop
from ..execution.stacks import name_of_thread, stack_of_tasks, stack_of_thread
from ..ipc.pipes import MessagePipe, MessageType
from ..ipc.scoreboard import WorkerSlot
from ..pools.pool import Pool
from .settler import Settler

NOT_IN_HANDLER = "Its handler is not running: it waits for a free slot, or for its settle."


class Inspector:
    """Looks at the frames of threads and tasks, when a person has asked. The heartbeat finds the
    questions, and a notification makes that faster. The settler has the connection."""

    def __init__(
        self,
        slot: WorkerSlot,
        pools: Sequence[Pool],
        loop: HandlerLoop,
        settler: Settler,
        pipe: MessagePipe,
    ) -> None:
        self._slot = slot
        self._pools = pools
        self._loop = loop
        self._settler = settler
        self._pipe = pipe
        self._seen_at = 0.0

    def look(self) -> None:
        """Answer soon, if a person has asked since the last look."""
        if self._slot.inspect_asked_at > self._seen_at:
            self._seen_at = self._slot.inspect_asked_at
            self._settler.submit(self._answer_in_time)

    def _answer_in_time(self) -> None:
        with self._settler.deadline:  # all endings wait for it
            self._answer_all()

    def _answer_all(self) -> None:
        for question in progress.asked([self._slot.worker]):
            try:
                self._answer(question)
            except Exception as error:  # nobody reads the result of this task
                emit_throttled(
                    "inspection_failed",
                    logging.WARNING,
                    job_id=question.job,
                    attempt=question.attempt,
                    error=repr(error),
                )

    def _answer(self, question: progress.Question) -> None:
        key, attempt = self._find(question)
        if attempt is not None and attempt.entry.alone:
            self._pipe.send(type=MessageType.INSPECT, index=attempt.entry.index)
            return
        thread, stack = "", NOT_IN_HANDLER
        if attempt is not None:
            try:
                thread, stack = self._stack(key, attempt)
            except Exception as error:  # frames change while they are read
                stack = f"its stack could not be read: {error!r}"
            if self._find(question) != (key, attempt):  # the thread may be in its next job
                thread, stack = "", NOT_IN_HANDLER
        ran = 0.0 if attempt is None else time.monotonic() - attempt.started
        progress.record(question, process=os.getpid(), thread=thread, ran=ran, stack=stack)

    def _find(self, question: progress.Question) -> tuple[int, Attempt | None]:
        for pool in self._pools:
            for key, attempt in list(pool.running.items()):
                if (attempt.job.id, attempt.job.attempt) == (question.job, question.attempt):
                    return key, attempt
        return 0, None

    def _stack(self, key: int, attempt: Attempt) -> tuple[str, str]:
        """The name of the thread, and the stack. ``key`` is the thread's id, or of a handler on the
        loop any other number."""
        if name := name_of_thread(key):
            return name, stack_of_thread(key)
        loop = self._loop
        tasks = loop.tasks_of(attempt.job.id)
        return "django_jobs-loop", stack_of_tasks(tasks, loop.current_task(), loop.thread_id)
