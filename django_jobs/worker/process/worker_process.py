"""A worker process: connects claimer, executor, settler and wakeup, and ends them in order."""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ... import registry
from ...domain.outcomes import Outcome
from ...lifecycle import progress, workers
from ...lifecycle.claiming import Slots
from ...lifecycle.job_columns import ClaimedJob
from ...signals import process_ended, process_started
from ..connections import (
    IDLE_SECONDS,
    close_idle,
    make_room_by,
    note_shortage,
    retry_while_disconnected,
    signal_process,
)
from ..context.attempt import Attempt, StopHandler
from ..context.progress import Reporter
from ..events import emit, emit_throttled
from ..execution.event_loop import HandlerLoop, LoopWatch
from ..execution.failures import outcome_of_ending
from ..execution.stacks import name_of_thread, stack_of_tasks, stack_of_thread
from ..handlers.forking import start_afresh_in_forks
from ..handlers.run_logs import keep_logs
from ..ipc.pipes import CRASHED, AttemptEnd, Message, MessagePipe, MessageType, refuse
from ..ipc.scoreboard import WorkerSlot
from ..meters import EndedProcessMeter, resident_megabytes
from ..options import RECYCLE, Options, PoolOptions, claimable
from ..pools.claimed_jobs import ClaimedJobs
from ..pools.pool import PREFETCH_LIMIT, Claimable, Pool
from ..wakeup import Wakeup
from .claimer import Claimer
from .executor import NOTHING_LEFT, AsyncExecutor, Executor
from .settler import Settler

CHECK_SECONDS = 1.0

BURST_OVER = "nothing was left to run (--burst)"

FORK_PAUSE = 1.0
"""Seconds until a job that could not be forked may be claimed again."""


class WorkerProcess:
    """One worker process, from its start to its exit."""

    def __init__(self, pipe: MessagePipe, slot: WorkerSlot, options: Options) -> None:
        self._pipe = pipe
        self._slot = slot
        self._options = options
        self._isolated: dict[int, Future[Message]] = {}
        """The isolated jobs by index on the scoreboard."""
        self._code = 0
        self._stop_reason = BURST_OVER
        """Replaced by the first that asks it to drain; empty if its row has the reason."""
        self._made_room_at = 0.0
        self._closed_idle_at = 0.0
        self._claimed = ClaimedJobs()
        self._reporter = Reporter()
        self._settler = Settler(slot, self._claimed, at_end=self._deregister)
        thread_pools, loop_pools = self._make_pools()
        self._pools = thread_pools + loop_pools
        self._executor = Executor(
            thread_pools,
            slot,
            self._settler,
            reporter=self._reporter,
            isolate=self._isolate if options.forks else None,
        )
        self._async_executor = AsyncExecutor(
            loop_pools,
            self._executor,
            self._settler,
            reporter=self._reporter,
            sessions=options.threads,
        )
        self._loop_watch = LoopWatch(self._async_executor.loop)
        self._inspector = Inspector(
            slot, self._pools, self._async_executor.loop, self._settler, pipe
        )
        self._claimer = Claimer(
            options, slot, self._claimed, self._pools, self._settler, self._executor
        )
        self._wakeup = Wakeup(
            self._claimer.on_notify,
            after=self._claimer.registered,
            makes_way=lambda: slot.is_short,
            note=slot.note_listening,
        )

    def _make_pools(self) -> tuple[list[Pool], list[Pool]]:
        """The pools of threads, and those of the event loop if there are async handlers."""
        options = self._options
        versions, on_loop = claimable(options), tuple(registry.loop_types())
        loop_versions = {name: versions[name] for name in on_loop}
        if not on_loop:
            for_threads = Claimable(job_types=versions)
        elif options.forks:
            for_threads = Claimable(job_types=versions, slots=Slots.THREADS, async_types=on_loop)
        else:  # no child can run a suspect
            others = {name: versions[name] for name in versions.keys() - on_loop}
            for_threads = Claimable(job_types=others)
        for_loop = Claimable(
            job_types=loop_versions, slots=Slots.LOOP if options.forks else Slots.ANY
        )
        prefetch_limit = PREFETCH_LIMIT // len(options.pools)

        def pool(of: PoolOptions, claims: Claimable, slots: int, *, on_loop: bool) -> Pool:
            return Pool(
                of,
                self._claimed,
                claims,
                slots=slots,
                on_loop=on_loop,
                strict=options.strict,
                prefetch_limit=prefetch_limit,
            )

        thread_pools = [pool(of, for_threads, of.threads, on_loop=False) for of in options.pools]
        loop_pools = [
            pool(of, for_loop, options.async_slots(of), on_loop=True)
            for of in options.pools
            if on_loop
        ]
        for threads, loop in zip(thread_pools, loop_pools, strict=False):
            threads.partner, threads.for_both = loop, Claimable(job_types=versions)
        return thread_pools, loop_pools

    def run(self) -> int:
        """Work until asked to drain. Returns the exit code."""
        signal_process(process_started, "worker")
        threading.excepthook = _die_of_our_own_fault
        make_room_by(self._slot.status.ask_for_room, self._slot.status.ask_for_idle)
        self._settler.thread.start()
        if not self._options.in_main_thread:
            self._executor.start()
        self._claimer.thread.start()
        if not self._options.burst:
            self._wakeup.thread.start()
        if self._options.in_main_thread:
            looks = threading.Thread(target=self._look, name="django_jobs-look", daemon=True)
            looks.start()
            self._executor.work_here()
            looks.join()
        else:
            self._look()
        signal_process(process_ended, "worker")
        return self._code

    def _look(self) -> None:
        """Obey the supervisor and look after the rest until all has ended."""
        checked = time.monotonic()
        while not self._is_over():
            try:
                # Short while ending, so that it exits right after the last settle.
                message = self._pipe.receive(0.02 if self._claimer.draining else CHECK_SECONDS / 4)
            except EOFError:
                os._exit(CRASHED)  # the supervisor has exited; the reaper settles our jobs
            if message is not None:
                self._obey(message)
            self._close_idle()
            self._slot.count(self._claimed.ended, self._claimed.failed)
            self._loop_watch.look(time.monotonic())
            self._inspector.look()
            if self._slot.force_asked:
                self._slot.force_asked = False  # before the look: a request meanwhile sets it again
                self._executor.stop_forced()
            if hoarded := self._hoarded():
                self._settler.give_back(hoarded)
            self._claimer.deadline.enforce()
            self._settler.deadline.enforce()
            self._reporter.background.deadline.enforce()
            if time.monotonic() - checked > CHECK_SECONDS:
                checked = time.monotonic()
                self._recycle_if_due()
        self._settler.finish()
        self._settler.thread.join(5)
        for pool in self._pools:
            pool.line.end()

    def _close_idle(self) -> None:
        """Close idle connections of handlers: after a while, or if the tree lacks one."""
        status = self._slot.status
        if status.room_asked_at > self._made_room_at:
            self._made_room_at = status.room_asked_at
            note_shortage()
            self._claimer.on_notify(None)  # it may have to close its connection
        elif status.idle_asked_at > self._closed_idle_at:
            self._closed_idle_at = status.idle_asked_at
            close_idle()
        else:
            close_idle(IDLE_SECONDS)

    def _is_over(self) -> bool:
        return self._claimer.drained.is_set() and not self._claimed

    def _hoarded(self) -> list[ClaimedJob]:
        """Take back the jobs that would wait here too long, or all if this process drains. Called
        repeatedly: after a drain began, a running claim or the settler may still add jobs."""
        if self._executor.draining:
            return self._claimed.take_unstarted()
        return [job for pool in self._pools for job in pool.hoarded()]

    def _obey(self, message: Message) -> None:
        match message["type"]:
            case MessageType.DRAIN:
                self._drain(message["reason"])
            case MessageType.STOP:
                self._executor.raise_stop()
                self._async_executor.loop.stop_all()
            case MessageType.ISOLATED:
                self._isolated.pop(message["index"]).set_result(message)
            case _:
                refuse(message)

    def _drain(self, reason: str) -> None:
        if not self._claimer.draining:
            self._stop_reason = reason
        self._claimer.drain()

    def _isolate(self, attempt: Attempt) -> Outcome | None:
        """Ask the supervisor to fork a child for an attempt, and wait for its end."""
        job, index = attempt.job, attempt.entry.index
        ended: Future[Message] = Future()
        self._isolated[index] = ended
        job_type = registry.find(job.job_type)
        self._pipe.send(
            type=MessageType.ISOLATE,
            job=job.id,
            worker=job.worker,
            index=index,
            max_rss=None if job_type is None else job_type.max_rss,
        )
        answer = ended.result()
        if answer["end"] is None:  # it has settled its job
            return NOTHING_LEFT
        attempt.meter = EndedProcessMeter(*answer["usage"])
        end = AttemptEnd(answer["end"])
        if end is AttemptEnd.NEVER_BEGAN:
            # It is ready again at once, perhaps for this process, which waits unless it drains.
            self._claimer.drained.wait(FORK_PAUSE)
        return outcome_of_ending(end, answer["reason"], answer["seconds"])

    def _recycle_if_due(self) -> None:
        options, claimer = self._options, self._claimer
        if claimer.draining:
            return
        reason = ""
        if options.max_jobs is not None and self._claimed.ended >= options.max_jobs:
            reason = f"ran {self._claimed.ended} jobs"
        elif options.max_rss is not None and (size := resident_megabytes()) > options.max_rss:
            reason = f"holds {size} MB"
        if reason:
            emit("worker_recycled", logging.INFO, worker=self._slot.worker, reason=reason)
            self._code = RECYCLE
            self._drain(f"recycled: it {reason}")
            self._pipe.send(type=MessageType.RECYCLES)  # for its isolated children

    def _deregister(self) -> None:
        worker = self._slot.worker
        if not worker:
            return
        retry_while_disconnected(
            lambda: workers.end(worker, reason=self._stop_reason),
            what="deregister",
            until=time.monotonic() + 2,
        )
        self._slot.register(0, 0.0)
        emit("worker_stopped", logging.INFO, worker=worker, ended=self._claimed.ended)


def run(pipe: MessagePipe, slot: WorkerSlot, options: Options) -> int:
    start_afresh_in_forks()
    slot.process = os.getpid()
    keep_logs()
    return WorkerProcess(pipe, slot, options).run()


def _die_of_our_own_fault(args: Any) -> None:
    """Exit after an exception ended one of our threads. Its attempts would never be settled, so the
    supervisor recovers and replaces the process. An exception in a handler's own thread has no such
    effect."""
    if args.exc_type is StopHandler:
        return  # raised just after its handler had ended; the process is about to exit
    if args.thread is None or not args.thread.name.startswith("django_jobs-"):
        threading.__excepthook__(args)
        return
    traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)
    os._exit(CRASHED)


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
