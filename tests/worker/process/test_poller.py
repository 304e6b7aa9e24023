"""When an idle worker looks for work."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from django_jobs.lifecycle.notifying import THROTTLE_SECONDS
from django_jobs.models import Job, Queue
from django_jobs.worker.process.poller import LINGER_SECONDS, NEVER, Lookout
from tests.app import jobs


@pytest.mark.django_db
def test_it_looks_at_the_poll_where_nothing_is_due() -> None:
    lookout = Lookout(["default"], poll=5.0)
    now = time.monotonic()
    assert lookout.next <= now
    assert lookout.look(now) == frozenset()
    assert lookout.next == now + 5.0
    assert lookout.due_at == NEVER
    lookout.at_once()
    assert lookout.next <= now


@pytest.mark.django_db
def test_it_looks_once_more_after_a_hint_also_when_it_has_looked_since() -> None:
    lookout = Lookout(["default"], poll=600.0)
    heard = time.monotonic()
    lookout.once_more()
    lookout.look(heard + 0.001)
    again = lookout.next
    assert heard + THROTTLE_SECONDS < again <= time.monotonic() + LINGER_SECONDS
    lookout.look(again)
    assert lookout.next == again + 600.0


@pytest.mark.django_db
def test_it_looks_when_the_next_job_is_due_and_makes_it_ready() -> None:
    job = jobs.noop.using(delay=60).enqueue()
    lookout = Lookout(["default"], poll=600.0)
    now = time.monotonic()
    assert lookout.look(now) == frozenset()
    assert now < lookout.next <= now + 60
    Job.objects.filter(pk=job.pk).update(available_at=job.created_at)
    assert lookout.look(lookout.next) == {"default"}
    assert Job.objects.get(pk=job.pk).status == "ready"


@pytest.mark.django_db
def test_it_learns_of_new_queues_in_the_same_look(
    django_assert_num_queries: Callable[[int], AbstractContextManager[Any]],
) -> None:
    names = list(Queue.objects.order_by("name").values_list("name", flat=True))
    every, some = (Lookout(names, poll=5.0, every=every) for every in (True, False))
    with django_assert_num_queries(1):
        assert every.look(time.monotonic()) == frozenset()
    Queue.objects.create(name="later", max_concurrency=1)
    jobs.noop.using(queue="later").enqueue()
    for lookout in every, some:
        found = lookout.look(time.monotonic())
        assert ("later" in found, "later" in lookout.limited) == (lookout is every,) * 2
        assert ("later" in lookout.queues) == (lookout is every)
