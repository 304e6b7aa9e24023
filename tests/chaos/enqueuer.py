"""``python -m tests.chaos.enqueuer``: enqueue, through all outages.

Writes the keys that it knows to be committed, and those that it knows to be rolled back.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django

from . import edits, requests
from .outside import TOO_LONG
from .requests import Request

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos.settings")
django.setup()

from django.db import DatabaseError, InterfaceError, connection, transaction  # noqa: E402 — models come after setup
from django.db.models.functions import Now  # noqa: E402 — models come after setup
from django.test import Client  # noqa: E402 — models come after setup

from django_jobs import Stored, cancel, enqueue, enqueue_many  # noqa: E402 — models come after setup
from django_jobs.domain.states import LIVE  # noqa: E402 — models come after setup
from django_jobs.models import Job, Queue, Schedule  # noqa: E402 — models come after setup

AWAY = (DatabaseError, InterfaceError)

CLAIMED_SOON = 0.05
"""Seconds between a batch and its cancels: a part of it runs by then, and a part is prefetched."""


class Dropped(Exception):
    """The caller's own transaction failed."""


class Enqueuer:
    """Asks for jobs. Each key begins with ``prefix``."""

    def __init__(self, prefix: str) -> None:
        self.kept: list[str] = []
        self.dropped: list[str] = []
        self.cancels: list[tuple[int, bool, float]] = []
        """Job, answer, and when it came."""
        self.forced: list[tuple[int, bool, float]] = []
        """The same of what is stopped by force."""
        self._prefix = prefix
        self._number = 0

    def ask(self, request: Request) -> None:
        """Until it is known to have happened: the answer to a commit may be lost."""
        numbers = range(self._number, self._number + request.count)
        self._number += request.count
        keys = [f"{self._prefix}-{number}" for number in numbers]
        name, payloads = f"chaos.{request.kind}", [payload_of(request, one) for one in numbers]
        is_over_http = request.kind == "calls_back"

        def one() -> Any:
            if is_over_http:
                return post(name, payloads[0], keys[0])
            return enqueue(name, payloads[0], queue=request.queue, idempotency_key=keys[0])

        def many(priority: int = 0) -> list[int]:
            if is_over_http:
                return [post(name, *pair).pk for pair in zip(payloads, keys, strict=True)]
            options: dict[str, Any] = {"queue": request.queue, "priority": priority}
            return enqueue_many(name, payloads, idempotency_keys=keys, **options)

        if request.queue == requests.LATER:
            until_it_works(lambda: Queue.objects.get_or_create(name=request.queue))
        match request.manner:
            case "cancelled":
                self._persistently(keys, lambda: in_one_transaction(many))
                self._cancel(keys)
            case "forced":  # before the others, so that they run by the time they are stopped
                first = partial(many, priority=100)
                self._persistently(keys, lambda: in_one_transaction(first))
                self._cancel(keys[::4], force=True)
            case "batch":
                self._persistently(keys, lambda: in_one_transaction(many))
            case "twice":
                self._persistently(keys, lambda: in_one_transaction(lambda: twice(one)))
            case "rolled back":
                self._drop(keys[0], one)
            case _:
                self._persistently(keys, one)

    def _persistently(self, keys: list[str], work: Callable[[], object]) -> None:
        def once() -> None:
            # A key is free again when its job has ended, so the retry has to look.
            there = Job.objects.filter(idempotency_key__in=keys).count()
            assert there in (0, len(keys)), "a part of a batch"
            if not there:
                work()

        until_it_works(once)
        self.kept += keys

    def stop_runaways(self, *, all_of_them: bool = False) -> None:
        """Stop by force those that run; or all that have not ended, since there is no other time to
        do so."""
        left = Job.objects.filter(job_type="chaos.forced", force_requested_at=None)
        left = left.filter(status__in=LIVE) if all_of_them else left.filter(status="running")
        self._cancel_all(left, force=True)

    def _cancel(self, keys: list[str], *, force: bool = False) -> None:
        time.sleep(CLAIMED_SOON)
        self._cancel_all(Job.objects.filter(idempotency_key__in=keys), force=force)

    def _cancel_all(self, jobs: Any, *, force: bool) -> None:
        jobs = jobs.order_by("id").values_list("pk", flat=True)
        for job in until_it_works(lambda: list(jobs)):
            answer = until_it_works(lambda job=job: cancel(job, force=force))
            cancels = self.forced if force else self.cancels
            cancels.append((job, answer, time.time()))

    def _drop(self, key: str, work: Callable[[], object]) -> None:
        self.dropped.append(key)
        try:
            with transaction.atomic():
                work()
                raise Dropped
        except Dropped:
            return
        except AWAY:  # then it was never committed either
            connection.close()


def payload_of(request: Request, number: int) -> dict[str, Any]:
    """The arguments. Of the charges three are of one order."""
    payload: dict[str, Any] = {"seconds": request.seconds}
    match request.kind:
        case "files":
            text = f"{number} " * TOO_LONG
            return payload | {"text": text, "file": Stored(text.encode(), "report.txt")}
        case "charges":
            return payload | {"order": number // 3}
    return payload


def post(name: str, payload: dict[str, Any], key: str) -> Any:
    """Ask for a job over HTTP, with a call at its end."""
    address = f"http://{os.environ['CHAOS_RECEIVER']}/"
    asked = {"job_type": name, "payload": payload, "callback_url": address}
    response = Client().post(
        "/jobs/", asked, content_type="application/json", headers={"Idempotency-Key": key}
    )
    assert response.status_code == 202, response.content
    is_old = response.headers["Idempotency-Replayed"] == "true"
    return SimpleNamespace(pk=response.json()["id"], deduplicated=is_old)


def until_it_works(work: Callable[[], Any]) -> Any:
    """Again and again while the database is away."""
    while True:
        try:
            return work()
        except AWAY:
            connection.close()
            time.sleep(0.1)


def in_one_transaction(work: Callable[[], object]) -> None:
    """All of it, or nothing."""
    with transaction.atomic():
        work()


def twice(work: Callable[[], Any]) -> None:
    """The second request finds the job of the first."""
    first, second = work(), work()
    assert (second.pk, second.deduplicated) == (first.pk, True), "a second job of one key"


def ask_every_second() -> float:
    """The schedules of the test, in place of those that the demo declares. Returns the first due
    time of the one that nobody edits, which no worker has a say in."""
    Schedule.objects.all().delete()
    both = {"overlap": Schedule.Overlaps.ALLOW, "catch_up": Schedule.CatchUps.WINDOW}
    both |= {"catch_up_limit": 86_400.0}
    Schedule.objects.create(
        name=edits.NAME,
        job_type="chaos.edited",
        every=1.0,
        payload={"rule": 0, "every": 1.0},
        **both,
    )
    row = Schedule.objects.create(
        name="every second", job_type="chaos.every_second", every=1.0, **both
    )
    mine = Schedule.objects.filter(pk=row.pk)
    now = mine.values_list(Now(), flat=True)[0]
    first = now.replace(microsecond=0).timestamp() + 1.0
    first_due = now.fromtimestamp(first, now.tzinfo)
    mine.update(next_due_at=first_due, stale=False)
    return float(first)


def main() -> None:
    """Spread the jobs over about so many seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("errand")
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    if asked.errand == "storm":
        with transaction.atomic():
            found["first_due"] = ask_every_second()
    enqueuer = Enqueuer(asked.errand)
    errand = requests.errand(asked.errand, asked.seed, asked.jobs)
    total = sum(request.count for request in errand)
    begun, done = time.monotonic(), 0
    for request in errand:
        enqueuer.stop_runaways()
        enqueuer.ask(request)
        done += request.count
        ahead = begun + asked.seconds * done / total - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
    enqueuer.stop_runaways(all_of_them=True)
    found |= {"kept": enqueuer.kept, "dropped": enqueuer.dropped}
    found |= {"cancelled": enqueuer.cancels, "forced": enqueuer.forced}
    asked.file.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
