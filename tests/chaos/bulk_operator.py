"""Asks for operations on all jobs that match, and stops and resumes some. Needs Django."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_jobs import enqueue_many
from django_jobs.domain.replay_plan import ReplayPlan
from django_jobs.lifecycle.operations import bulk
from django_jobs.models import BulkOperation, Job

from . import operation_plan
from .enqueuer import in_one_transaction
from .operation_plan import ENQUEUE, PLAN, RESUME, SICK_PLAN, START, STOP, Event
from .operations import FIRST, PRIORITY, QUEUE

FAR_AWAY = 86_400.0
"""Seconds until a job would run that nobody makes ready."""
LATER = 4.0
"""Seconds until the second half of the jobs is due that workers and an operation both want."""

Asked = tuple[str, dict[str, Any]]

ASKED: dict[str, Asked] = {
    operation_plan.CANCEL: ("cancel", {}),
    operation_plan.REPRIORITIZE: ("reprioritize", {"arguments": {"priority": PRIORITY}}),
    operation_plan.RUN_NOW: ("run_now", {}),
    operation_plan.REPLAY: ("replay", {}),
    # Jobs that are lost in the storm count as failed again.
    PLAN: ("replay", {"plan": ReplayPlan(first=FIRST, then=4, rate=5, most_failed=100)}),
    SICK_PLAN: ("replay", {"plan": ReplayPlan(first=FIRST, then=4, rate=5, most_failed=50)}),
    operation_plan.DISMISS: ("dismiss", {}),
}


class BulkOperator:
    """Each operation has a name, by which it is found again: the answer to a commit may be lost."""

    def __init__(self) -> None:
        self.kept_keys: list[str] = []
        self.asked: dict[str, str] = {}
        """The kind of each operation that is known to be there, by its name."""

    def act(self, event: Event) -> bool:
        """Whether it is done; otherwise it is too early. Done twice, it changes nothing."""
        does: dict[str, Callable[[Event], bool]] = {
            ENQUEUE: self._enqueue,
            START: self._start,
            STOP: self._stop,
            RESUME: self._resume,
        }
        return does[event.verb](event)

    def _enqueue(self, event: Event) -> bool:
        keys = [f"{event.name}-{place}" for place in range(event.jobs)]
        name, payload = "chaos.bulk_work", {"seconds": event.seconds}
        delays = {None: keys[::2], LATER: keys[1::2]}
        if event.kind in operation_plan.DEAD:
            name, payload["again"] = "chaos.bulk_dies", event.kind == SICK_PLAN
            delays = {None: keys}
        elif event.kind == operation_plan.RUN_NOW:
            delays = {FAR_AWAY: keys}

        def many() -> None:
            for delay, some in delays.items():
                payloads = [payload] * len(some)
                options: dict[str, Any] = {"queue": QUEUE, "tags": [event.name], "delay": delay}
                enqueue_many(name, payloads, idempotency_keys=some, **options)

        if not Job.objects.filter(idempotency_key__in=keys).exists():
            in_one_transaction(many)
        self.kept_keys += keys
        return True

    def _start(self, event: Event) -> bool:
        if self._operation(event) is None:
            jobs = Job.objects.tagged(event.name)
            if event.kind in operation_plan.DEAD and jobs.exclude(status="dead").exists():
                return False
            action, options = ASKED[event.kind]
            bulk.start(action, {"tag": event.name}, by="storm", reason=event.name, **options)
        self.asked[event.name] = event.kind
        return True

    def _stop(self, event: Event) -> bool:
        if operation := self._operation(event):
            bulk.stop([operation.pk], by="storm")
        return True

    def _resume(self, event: Event) -> bool:
        operation = self._operation(event)
        if operation is None:
            return True
        if operation.is_unfinished and operation.stop_requested_by:
            return False
        bulk.resume([operation.pk], by="storm")
        return True

    def _operation(self, event: Event) -> BulkOperation | None:
        return BulkOperation.objects.filter(reason=event.name).first()
