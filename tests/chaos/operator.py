"""``python -m tests.chaos.operator``: start workflows and operations on all jobs that match, and
operate them, through all outages.

Writes the keys that it knows to be committed, those that it knows to be rolled back, and what each
operation answered; null if the answer was lost.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos.settings")
django.setup()

from django.db import connection, transaction  # noqa: E402 — models come after setup
from django.db.models import Q  # noqa: E402 — models come after setup

from django_jobs import OperationRefused, cancel, enqueue  # noqa: E402 — models come after setup
from django_jobs.api import replay_problem  # noqa: E402 — models come after setup
from django_jobs.lifecycle.operations import jobs, workflows  # noqa: E402 — models come after setup
from django_jobs.lifecycle.workflows.stuck import STUCK  # noqa: E402 — models come after setup
from django_jobs.models import Job, Resource, Schedule, WorkflowRun  # noqa: E402 — models come after setup

from . import alerts, edits, operation_plan, workflow_plan  # noqa: E402 — models come after setup
from .bulk_operator import BulkOperator  # noqa: E402 — models come after setup
from .enqueuer import AWAY, Dropped, in_one_transaction, until_it_works  # noqa: E402 — models come after setup
from .graphs import WORKFLOWS  # noqa: E402 — models come after setup
from .workflow_plan import SIGNAL, START, Event  # noqa: E402 — models come after setup

TOO_EARLY = 0.5
"""Seconds until the next try."""

BY_JOB = {"album": "chaos.splits", "by name": "chaos.diamond"}


class Operator:
    """Starts runs, each with a key, and finds them again by it."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.kept_runs: list[str] = []
        self.dropped: list[str] = []
        self.done: list[dict[str, Any]] = []

    def act(self, event: Event) -> None:
        """Start a run until it is known to have started, or try once to do something to one."""
        if event.verb == START:
            self._start(event)
            return
        try:
            self._operate(event)
        except AWAY:  # it may have been done
            connection.close()
            self._note(event, None)

    def _start(self, event: Event) -> None:
        key = key_of(event)
        if event.kind in BY_JOB:
            payload = {"seconds": event.seconds}
            payload |= {"parts": event.parts} if event.kind == "album" else {}
            there = Job.objects.filter(idempotency_key=key)
            kept = self.kept

            def start() -> Any:
                return enqueue(BY_JOB[event.kind], payload, idempotency_key=key)
        else:
            workflow = WORKFLOWS[f"chaos.{event.kind}"].using(idempotency_key=key)
            arguments = arguments_of(event)
            there = WorkflowRun.objects.filter(idempotency_key=key)
            kept = self.kept_runs

            def start() -> Any:
                return workflow.start(**arguments)

        def twice() -> None:
            first, second = start(), start()
            assert (second.pk, second.deduplicated) == (first.pk, True), "a second run of one key"

        def once() -> None:
            if not there.exists():
                in_one_transaction(twice if event.manner == "twice" else start)

        if event.manner == "rolled back":
            self._drop(key, start)
        else:
            until_it_works(once)
            kept.append(key)

    def _drop(self, key: str, start: Callable[[], object]) -> None:
        self.dropped.append(key)
        try:
            with transaction.atomic():
                start()
                raise Dropped
        except Dropped:
            return
        except AWAY:
            connection.close()

    def _operate(self, event: Event) -> None:
        run = self._run_of(event)
        if run is None:  # it was rolled back, or has not spawned yet
            return
        steps = list(Job.objects.filter(workflow_run=run).order_by("pk").values_list("pk", "step"))
        id_, step = steps[int(event.share * len(steps))]
        match event.verb:
            case "cancel":
                self._note(event, run.cancel("the storm"), run=run.pk)
            case "cancel a step":
                self._note(event, cancel(id_), run=run.pk, job=id_)
            case "retry":
                try:
                    run.retry("the storm")
                except OperationRefused:
                    self._note(event, False, run=run.pk)
                else:
                    self._note(event, True, run=run.pk)
            case "skip":
                done = workflows.skip(run.pk, step, by="storm").done
                self._note(event, bool(done), run=run.pk, job=id_)
            case "replay":
                dead = Job.objects.filter(workflow_run=run, status="dead").order_by("pk")
                for one in dead.values_list("pk", flat=True)[:1]:
                    done = jobs.replay([one], check=replay_problem, by="storm").done
                    self._note(event, bool(done), run=run.pk, job=one)
            case _:
                self._signal(event, run)

    def _signal(self, event: Event, run: WorkflowRun) -> None:
        """Of the wait and of the durable handler, those that have none yet."""
        assert event.verb == SIGNAL
        data: Any = 10 + event.number
        if event.kind == "consent":
            data = {"approved": event.parts % 2 == 0, "note": "the storm", "by": "storm"}
        for job in Job.objects.filter(workflow_run=run, step__in=("answer", "flow")):
            self._note(event, job.signal("answer", data), run=run.pk, job=job.pk, data=data)

    def _run_of(self, event: Event) -> WorkflowRun | None:
        key = key_of(event)
        if event.kind in BY_JOB:
            job = Job.objects.filter(idempotency_key=key).first()
            if job is None:
                return None
            return WorkflowRun.objects.filter(
                Q(steps=job.pk) | Q(idempotency_key=f"job:{job.pk}")
            ).first()
        return WorkflowRun.objects.filter(idempotency_key=key).first()

    def _note(self, event: Event, answer: bool | None, **what: Any) -> None:
        key = key_of(event)
        self.done.append({"verb": event.verb, "key": key, "answer": answer, **what})


def key_of(event: Event) -> str:
    """The key of the run."""
    return f"workflow-{event.number}"


def arguments_of(event: Event) -> dict[str, Any]:
    """What the run is started with."""
    given = {"seconds": event.seconds, "failing": event.failing, "parts": event.parts}
    taken = WORKFLOWS[f"chaos.{event.kind}"].signature.parameters
    return {name: value for name, value in given.items() if name in taken}


def edit(event: edits.Edit) -> None:
    """Change the rule once, also where the answer to its commit was lost."""
    payload = {"rule": event.rule, "every": event.every}
    others = Schedule.objects.filter(name=edits.NAME).exclude(payload__rule=event.rule)
    others.update(every=event.every, payload=payload)


def toggle(event: alerts.Toggle) -> None:
    """Open or close the breaker, as what opens one writes it."""
    row = Resource.objects.filter(name=alerts.RESOURCE)
    row.update(breaker_state="open" if event.is_open else "closed")


def main() -> None:
    """Spread the runs and the operations over so many seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--operations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args()
    operator, bulk, begun = Operator(), BulkOperator(), time.monotonic()
    ahead = [
        (event.at, place, event)
        for place, event in enumerate(
            (
                *workflow_plan.events(asked.seed, asked.runs, asked.seconds),
                *operation_plan.events(asked.seed, asked.operations, asked.seconds),
                *edits.events(asked.seed, asked.seconds),
                *alerts.events(asked.seed, asked.seconds),
            )
        )
    ]
    heapq.heapify(ahead)
    while ahead:
        at, place, event = heapq.heappop(ahead)
        time.sleep(max(begun + at - time.monotonic(), 0.0))
        if isinstance(event, Event):
            operator.act(event)
        elif isinstance(event, edits.Edit):
            until_it_works(lambda event=event: edit(event))
        elif isinstance(event, alerts.Toggle):
            until_it_works(lambda event=event: toggle(event))
        elif not until_it_works(lambda event=event: bulk.act(event)):
            heapq.heappush(ahead, (time.monotonic() - begun + TOO_EARLY, place, event))
    found = {"kept": operator.kept + bulk.kept_keys, "dropped": operator.dropped}
    found |= {"kept_runs": operator.kept_runs, "done": operator.done, "operations": bulk.asked}
    found["stuck"] = STUCK  # for the account, whose process has no Django
    asked.file.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
