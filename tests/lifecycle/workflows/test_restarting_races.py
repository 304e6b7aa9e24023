"""A retry while other sessions end the steps of its run, or add to them: each edge counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobs.api import replay_problem
from django_jobs.lifecycle.bulk_insert import Item
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.operations import workflows
from django_jobs.lifecycle.workflows import restarting, spawning
from django_jobs.lifecycle.workflows.spawning import NewSpawn, Spawned, new_run_id, write_batch
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, WorkflowRun
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    failure,
    in_threads,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.test_opening import OK, finish
from tests.patience import PATIENCE
from tests.worker.processes import until
from tests.workflow_account import contradictions
from tests.workflows import start_graph, states, step, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
DEAD = failure(final=True)
WAITS = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"


def retry(run: int) -> None:
    assert workflows.retry([run], check=replay_problem).refused == {}


class Aside:
    """Does something in another session: until it is done, or waits for a lock."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def do(self, work: Callable[[], object]) -> None:
        session: list[int] = []

        def act() -> None:
            try:
                connection.ensure_connection()
                session.append(connection.connection.info.backend_pid)
                work()
            finally:
                connection.close()

        thread = threading.Thread(target=act)
        thread.start()
        self.threads.append(thread)
        until(lambda: not thread.is_alive() or (session and run_sql(WAITS, session)))

    def end(self) -> None:
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def during(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, work: Callable[[], None]
) -> None:
    """Call ``work`` once, after ``place.name`` has returned for the first time."""
    original, done = getattr(place, name), threading.Event()

    def called(*arguments: Any) -> Any:
        result = original(*arguments)
        if not done.is_set():
            done.set()
            work()
        return result

    monkeypatch.setattr(place, name, called)


def sound(run: int) -> None:
    assert stuck() == []
    assert contradictions(run_sql) == []
    finish()
    assert stuck() == []
    assert contradictions(run_sql) == []
    row = WorkflowRun.objects.get(pk=run)
    assert (row.status, row.ends_left) == ("succeeded", 0)


def test_a_step_that_ends_during_a_retry_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_graph({"bad": "", "late": "", "then": "bad late"})
    bad, late = claim_ready(register_worker())
    settle_one(bad, DEAD)
    aside = Aside()
    during(
        monkeypatch,
        restarting,
        "_count_again",
        lambda: aside.do(lambda: settle_one(late, OK)),
    )
    retry(run.pk)
    aside.end()
    assert states(run) == {"bad": "ready", "late": "succeeded", "then": "waiting"}
    sound(run.pk)


def test_a_step_that_fails_during_a_retry_skips_what_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = start_graph({"bad": "", "late": "", "other": "", "then": "bad late", "last": "then"})
    bad, late, other = claim_ready(register_worker())
    settle_one(bad, DEAD)
    aside = Aside()
    during(
        monkeypatch,
        restarting,
        "_bring_back",
        lambda: aside.do(lambda: settle_one(late, DEAD)),
    )
    retry(run.pk)
    aside.end()
    assert contradictions(run_sql) == []
    finish()
    assert contradictions(run_sql) == []
    assert states(run)["then"] == states(run)["last"] == "cancelled (failed)"
    retry(run.pk)
    settle_one(other, OK)
    sound(run.pk)


def test_a_retry_waits_for_no_step_that_it_leaves_as_it_is() -> None:
    run = start_graph({"bad": "", "late": "", "then": "bad late"})
    bad, _ = claim_ready(register_worker())
    settle_one(bad, DEAD)
    locked, retried = threading.Event(), threading.Event()

    def act(number: int) -> None:
        if number == 0:
            with transaction.atomic():
                run_sql("SELECT 1 FROM django_jobs_job WHERE step = 'late' FOR UPDATE")
                locked.set()
                assert retried.wait(PATIENCE)
        else:
            assert locked.wait(PATIENCE)
            try:
                run_sql("SET lock_timeout = '1s'")
                retry(run.pk)
            finally:
                retried.set()

    in_threads(2, act)
    assert states(run) == {"bad": "ready", "late": "running", "then": "waiting"}


class Spawner:
    """A job that spawns children, batch by batch, and ``then``."""

    def __init__(self) -> None:
        claimed = enqueue_and_claim()
        self.job: ClaimedJob = claimed._replace(workflow_run_id=new_run_id())
        (then,) = steps_of({"then": ""})
        self.spawn = NewSpawn(
            key="part",
            name="part",
            step="spawner",
            new=noop.request(),
            then=replace(then, others=1),
        )
        self.count = 0

    def write(self, *, is_last: bool = False) -> Spawned:
        items: list[Item] = [("{}", None, None)]
        spawned = write_batch(self.job, self.spawn, self.count, items, is_last=is_last)
        self.count = spawned.count
        return spawned


def test_children_that_are_written_during_a_retry_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The retry waits for the batch, and the child of the batch ends while it counts."""
    spawner, worker, aside = Spawner(), register_worker("other"), Aside()
    spawner.write()
    run = spawner.job.workflow_run_id
    assert run is not None
    (first,) = claim_ready(worker)
    settle_one(first, DEAD)
    assert Job.objects.get(step="then").skipped == "failed"

    def end_children() -> None:
        for one in claim_ready(worker):
            settle_one(one, OK)

    retrying = Aside()
    during(monkeypatch, restarting, "_count_again", lambda: aside.do(end_children))
    during(monkeypatch, spawning, "_insert", lambda: retrying.do(lambda: retry(run)))
    spawner.write(is_last=True)
    retrying.end()
    aside.end()
    settle_one(spawner.job, OK)
    sound(run)


def test_a_retry_after_a_batch_began_finds_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    spawner, worker, retrying = Spawner(), register_worker("other"), Aside()
    spawner.write()
    run = spawner.job.workflow_run_id
    assert run is not None
    (first,) = claim_ready(worker)
    settle_one(first, DEAD)
    during(monkeypatch, spawning, "_lock", lambda: retrying.do(lambda: retry(run)))
    spawner.write(is_last=True)
    retrying.end()
    then = Job.objects.get(step="then")
    assert (then.status, then.prerequisites) == ("waiting", 3)
    settle_one(spawner.job, OK)
    sound(run)
    assert step(WorkflowRun.objects.get(pk=run), "then").status == "succeeded"


def test_a_busy_fan_out_is_retried_while_its_children_end() -> None:
    names = [str(number) for number in range(240)]
    run = start_graph(dict.fromkeys(names, "") | {"then": " ".join(names)})
    workers = [register_worker(str(number)) for number in range(3)]
    held = [claim_ready(worker, limit=80) for worker in workers]
    at_work = set(range(3))

    def act(number: int) -> None:
        if number < len(held):
            for one in held[number]:
                settle_one(one, DEAD if one.id % 20 == number else OK)
            at_work.discard(number)
            return
        while at_work:
            workflows.retry([run.pk], check=replay_problem)

    in_threads(4, act)
    workflows.retry([run.pk], check=replay_problem)
    sound(run.pk)
