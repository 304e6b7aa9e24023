"""Make attempts in the test's own process, with what a worker process gives them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from django_jobs.domain.outcomes import Outcome
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.settling import Settled
from django_jobs.worker.connections import drop_connection, own_connection
from django_jobs.worker.context.attempt import Attempt
from django_jobs.worker.context.progress import Reporter
from django_jobs.worker.execution import handler_call
from django_jobs.worker.execution.event_loop import HandlerLoop
from django_jobs.worker.ipc.scoreboard import Scoreboard
from tests.factories import declared, enqueue_and_claim, run_sql

T = TypeVar("T")


def in_own_session(work: Callable[[], T]) -> T:
    """What ``work`` returns on the connection that a claimer or a settler has."""

    def thread() -> T:
        own_connection(keeps_plans=True)
        try:
            return work()
        finally:
            drop_connection()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(thread).result()


class Desk:
    """A reporter and the attempts that report to it."""

    def __init__(self) -> None:
        self.reporter = Reporter()
        self.draining = False
        self.stopping = False
        self.heard = 0

    def make(self, held: ClaimedJob) -> Outcome | Settled:
        """One attempt, as a worker makes it, up to its settle."""
        outcome: Outcome | Settled | None = None
        attempt = self.begin(held)
        try:
            outcome = handler_call.call(attempt)
            return outcome
        finally:
            self.reporter.end(attempt, outcome)

    def begin(self, held: ClaimedJob) -> Attempt:
        """An attempt whose handler may report. Nothing interrupts it."""
        slot = Scoreboard(1).slots[0]
        slot.register(held.worker, time.monotonic() + 600)
        attempt = Attempt(
            held,
            slot,
            self.reporter,
            stopping=lambda: self.stopping,
            draining=lambda: self.draining,
        )
        attempt.begin()
        attempt.run_async = HandlerLoop().run
        attempt.on_progress = self.hear
        return attempt

    def hear(self) -> None:
        """What the handler reported was heard of."""
        self.heard += 1

    def run(self, *handlers: Callable[..., Any], **options: Any) -> list[Outcome | Settled]:
        """A new job, of which each attempt has its own handler."""
        outcomes = []
        held: ClaimedJob | None = None
        for handler in handlers:
            with declared(handler, name="app.handler", **options) as job_type:
                held = enqueue_and_claim(job_type) if held is None else next_attempt(held)
                outcomes.append(self.make(held))
        return outcomes


def next_attempt(held: ClaimedJob) -> ClaimedJob:
    """The job as a later attempt of the same worker holds it, whatever became of this one."""
    run_sql(
        "UPDATE django_jobs_job SET attempt = attempt + 1 WHERE id = %s AND attempt = %s",
        [held.id, held.attempt],
    )
    return held._replace(attempt=held.attempt + 1)
