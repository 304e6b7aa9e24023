"""Replay: a dead job is sent back with all it was, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs import enqueue_many
from django_jobs.api import replay_problem
from django_jobs.lifecycle.job_columns import MOST_REPLAYS
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Run
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    declared,
    in_threads,
    make_dead,
    make_user,
    register_worker,
    run_sql,
)

pytestmark = pytest.mark.django_db


def replay(*ids: int, **options: Any) -> job_operations.OperationResult:
    return job_operations.replay(ids, check=replay_problem, **options)


def test_a_replayed_job_resets_its_counters_and_keeps_key_and_runs() -> None:
    dead = make_dead(add, 1, idempotency_key="k", headers={"trace": "t"}, priority=4)
    run_sql("UPDATE django_jobs_job SET crashes = 3, failures = 5")
    report = replay(dead.pk, actor=make_user("replay_job"), reason="fixed in 1.2")
    assert (report.done, report.refused) == ([dead.pk], {})
    job = Job.objects.get()
    assert (job.status, job.failures, job.crashes, job.replays) == ("ready", 0, 0, 1)
    assert (job.attempt, job.idempotency_key, job.reason) == (1, "k", "")
    assert (job.finished_at, job.result, job.cancel_requested_at) == (None, None, None)
    assert job.rank == pytest.approx(job.available_at.timestamp() - 240, abs=1e-3)
    assert job.headers["trace"] == "t"
    (entry,) = job.headers["replays"]
    assert (entry["by"], entry["why"], entry["after_attempt"]) == ("olga", "fixed in 1.2", 1)
    assert entry["died_of"] == dead.reason
    assert entry["at"]
    assert Run.objects.count() == 1
    assert claim_ready(register_worker())[0].attempt == 2


def test_a_replay_without_an_actor_may_name_its_operator() -> None:
    dead = make_dead()
    replay(dead.pk, by="ada@host")
    assert Job.objects.get().headers["replays"][0]["by"] == "ada@host"


def test_each_replay_is_recorded_after_the_others() -> None:
    job = make_dead()
    for number in range(3):
        run_sql("UPDATE django_jobs_job SET status = 'dead' WHERE id = %s", [job.pk])
        replay(job.pk, reason=str(number))
    stored = Job.objects.get()
    assert [entry["why"] for entry in stored.headers["replays"]] == ["0", "1", "2"]
    assert stored.replays == 3


def test_the_last_replays_are_recorded_and_all_are_counted() -> None:
    job = make_dead()
    for number in range(MOST_REPLAYS + 3):
        run_sql("UPDATE django_jobs_job SET status = 'dead' WHERE id = %s", [job.pk])
        assert replay(job.pk, reason=str(number)).done == [job.pk]
    job.refresh_from_db()
    reasons = [entry["why"] for entry in job.headers["replays"]]
    assert reasons == [str(number) for number in range(3, MOST_REPLAYS + 3)]
    assert job.replays == MOST_REPLAYS + 3


def test_a_job_is_not_replayed_while_a_live_one_holds_its_key() -> None:
    dead, free = make_dead(idempotency_key="k"), make_dead()
    holder = noop.using(idempotency_key="k").enqueue()
    report = replay(dead.pk, free.pk)
    assert report.done == [free.pk]
    assert report.refused == {dead.pk: f"job {holder.pk} (ready) holds its idempotency key 'k'"}
    assert Job.objects.get(pk=dead.pk).status == "dead"


def test_of_two_dead_jobs_with_one_key_one_is_replayed() -> None:
    one, other = make_dead(idempotency_key="k"), make_dead(idempotency_key="k")
    report = replay(one.pk, other.pk)
    assert report.done == [one.pk]
    assert f"job {one.pk}" in report.refused[other.pk]


def test_a_job_that_todays_code_cannot_run_is_refused_with_the_reason() -> None:
    def gone(old: int) -> None: ...

    with declared(gone, name="app.gone") as job_type:
        unknown = make_dead(job_type, 1)
    changed = make_dead(add, 1)
    run_sql("UPDATE django_jobs_job SET payload = '{\"old\": 1}' WHERE id = %s", [changed.pk])
    listed = make_dead(add, 1)
    run_sql("UPDATE django_jobs_job SET payload = '[1]' WHERE id = %s", [listed.pk])
    refused = replay(unknown.pk, changed.pk, listed.pk).refused
    assert refused[unknown.pk] == "no handler is registered for 'app.gone'"
    assert refused[changed.pk].endswith("; got old")
    assert refused[listed.pk] == "its payload is not a dict of arguments"
    assert Job.objects.dead().count() == 3


@pytest.mark.parametrize("headers", ["[]", "7", "null", '"text"'])
def test_a_job_with_invalid_headers_is_refused_alone(headers: str) -> None:
    first, spoilt, last = make_dead(), make_dead(), make_dead()
    run_sql("UPDATE django_jobs_job SET headers = %s WHERE id = %s", [headers, spoilt.pk])
    report = replay(first.pk, spoilt.pk, last.pk)
    assert report.done == [first.pk, last.pk]
    assert "not an object" in report.refused[spoilt.pk]


def test_a_job_with_a_counter_at_its_end_is_refused_alone() -> None:
    spoilt, other = make_dead(), make_dead()
    run_sql("UPDATE django_jobs_job SET replays = 2147483647 WHERE id = %s", [spoilt.pk])
    report = replay(spoilt.pk, other.pk)
    assert report.done == [other.pk]
    assert "out of range" in report.refused[spoilt.pk]


def test_only_dead_jobs_are_replayed() -> None:
    job = noop.enqueue()
    assert replay(job.pk, 10**12).refused == {
        job.pk: "it is ready",
        10**12: "there is no such job",
    }


@pytest.mark.django_db(transaction=True)
def test_of_many_that_replay_a_job_at_once_one_does() -> None:
    dead = make_dead()
    reports = in_threads(6, lambda _: replay(dead.pk))
    assert sum(len(report.done) for report in reports) == 1
    assert Job.objects.get().replays == 1


def test_actions_take_thousands_of_ids() -> None:
    ids = enqueue_many("app.noop", [{}] * 3000)
    assert len(job_operations.reprioritize(ids, 5).done) == 3000
    assert len(job_operations.cancel(ids).done) == 3000
