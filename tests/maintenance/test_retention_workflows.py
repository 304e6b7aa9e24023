"""Retention keeps a run of a workflow with all its steps, or deletes all of it."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_jobs.domain.retention import Kept
from django_jobs.exceptions import OperationRefused
from django_jobs.lifecycle import dropping, history
from django_jobs.lifecycle.dead_letters import DeadLimit, prune_dead
from django_jobs.lifecycle.dropping import drop
from django_jobs.lifecycle.history import Partition, partitions
from django_jobs.lifecycle.pruning import prune_workflows
from django_jobs.maintenance.history import Partitions
from django_jobs.maintenance.retention import Retention
from django_jobs.models import Dependency, Job, Receipt, Run, WorkflowRun
from tests.factories import claim_ready, failure, make_dead, register_worker, run_sql, settle_one
from tests.lifecycle.test_history import backdate
from tests.lifecycle.test_history import yesterday as yesterday
from tests.lifecycle.test_opening import OK, finish
from tests.maintenance.test_history import finished, make_days, old
from tests.workflows import start_graph, states

pytestmark = pytest.mark.django_db
DEAD = failure(final=True)
DAY = 86_400.0
GRAPH = {"a": "", "b": "a", "sorry": "-a"}


def age(days: int) -> None:
    for table in "django_jobs_job", "django_jobs_run", "django_jobs_workflowrun":
        run_sql(f"UPDATE {table} SET finished_at = finished_at - make_interval(days => %s)", [days])
    run_sql(
        "UPDATE django_jobs_job SET created_at = created_at - make_interval(days => %s)", [days]
    )


def add_receipts() -> None:
    for job in Job.objects.all():
        Receipt.objects.create(job=job, key="k", attempt=1, answer=1, made_at=job.created_at)


def prune() -> None:
    retention = Retention(page=2, budget=60)
    while retention.run_once():
        pass


def rows_left() -> list[int]:
    return [one.objects.count() for one in (WorkflowRun, Job, Run, Receipt, Dependency)]


def test_a_run_that_has_expired_is_deleted_with_all_of_it() -> None:
    run = start_graph(GRAPH)
    finish()
    add_receipts()
    age(6)
    prune()
    assert len(states(run)) == 3
    age(2)
    kept = start_graph(GRAPH)
    prune()
    assert rows_left() == [1, 3, 0, 0, 2]
    assert WorkflowRun.objects.get() == kept


def test_a_run_that_has_lost_steps_cannot_be_restarted() -> None:
    run = start_graph(GRAPH)
    finish({"a": DEAD})
    age(100)
    assert prune_workflows(DAY, dead=DAY, page=2) == 2
    run.refresh_from_db()
    assert (run.status, len(states(run))) == ("expired", 1)
    with pytest.raises(OperationRefused, match="the workflow run has expired"):
        run.retry()
    assert prune_workflows(DAY, dead=DAY, page=10) == 2
    assert rows_left() == [0] * 5


def test_the_steps_of_a_run_that_goes_on_for_weeks_stay() -> None:
    run = start_graph(GRAPH)
    (held,) = claim_ready(register_worker())
    settle_one(held, OK)
    age(30)
    prune()
    assert states(run)["a"] == "succeeded"
    finish()
    age(6)
    prune()
    assert len(states(run)) == 3


def test_a_run_with_a_dead_step_stays_as_long_as_dead_jobs(settings: Settings) -> None:
    start_graph(GRAPH)
    finish({"a": DEAD})
    age(100)
    prune()
    assert rows_left()[:2] == [1, 3]
    settings.DJANGO_JOBS = {"RETENTION": {"dead": "101d"}}
    prune()
    assert rows_left()[:2] == [1, 3]
    age(2)
    prune()
    assert rows_left() == [0] * 5


def test_runs_may_be_kept_for_another_time_or_for_ever(settings: Settings) -> None:
    start_graph(GRAPH)
    finish()
    age(10)
    for kept, left in ((None, 1), ("30d", 1), ("9d", 0)):
        settings.DJANGO_JOBS = {"RETENTION": {"workflows": kept}}
        prune()
        assert WorkflowRun.objects.count() == left


def test_the_limits_of_dead_jobs_do_not_count_steps() -> None:
    run = start_graph(GRAPH)
    finish({"a": DEAD})
    dead = [make_dead().pk for _ in range(3)]
    limit = DeadLimit(column="queue", name="default", kept=Kept(number=2))
    assert prune_dead(limit).total() == 1
    assert set(Job.objects.filter(status="dead").values_list("pk", flat=True)) == {
        Job.objects.get(workflow_run=run, step="a").pk,
        *dead[1:],
    }


def test_steps_outlive_their_partition(yesterday: tuple[Partition, Partition]) -> None:
    run = start_graph(GRAPH)
    finish()
    add_receipts()
    ids = list(Job.objects.values_list("pk", flat=True))
    before = rows_left()
    backdate(*ids)
    assert all(drop(one) for one in yesterday)
    assert not {one.name for one in yesterday} & {
        one.name for table in history.TABLES for one in partitions(table)
    }
    assert rows_left() == before
    assert states(run)["a"] == "succeeded"
    age(8)
    prune()
    assert rows_left() == [0] * 5


def test_a_partition_with_many_steps_stays(
    yesterday: tuple[Partition, Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropping, "MOST_KEPT", 2)
    start_graph(GRAPH)
    finish()
    backdate(*Job.objects.values_list("pk", flat=True))
    assert not drop(yesterday[0])
    age(8)
    prune()
    assert drop(yesterday[0])


def test_a_partition_that_stays_holds_up_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping, "MOST_KEPT", 2)
    make_days(20, 19, 18)
    run = start_graph(GRAPH)
    finish()
    age(20)
    for days in 20, 19, 18:
        finished(days)
    task = Partitions(budget=60)
    assert [task.run_once() for _ in range(3)] == [3, 2, 0]
    assert old() == (1, 1)
    assert set(Job.objects.values_list("workflow_run", flat=True)) == {run.pk}
    assert len(states(run)) == Job.objects.count() == 3
    assert set(Run.objects.values_list("job", flat=True)) <= set(
        Job.objects.values_list("pk", flat=True)
    )
