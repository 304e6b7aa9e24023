"""Finished jobs whose retention is over go, with their runs, and nothing else goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import transaction

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.pruning import (
    PRUNE_TICKS,
    PRUNE_UNIQUE_KEYS,
    PRUNE_WORKERS,
    Page,
    Rules,
    prune,
    prune_old,
)
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import Job, Run, Tick, Worker
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    due_schedule,
    enqueue_and_claim,
    in_threads,
    make_dead,
    open_elsewhere,
    register_worker,
    run_sql,
)

pytestmark = pytest.mark.django_db

DAY = 86_400.0
RULES: Rules = {"*": {"succeeded": 7 * DAY, "cancelled": None}}


def finish(count: int = 1, queue: str = "default") -> list[int]:
    """So many succeeded jobs with a run each."""
    enqueue_many("app.noop", [{}] * count, queue=queue)
    held = claim_ready(register_worker(), queue, limit=count)
    settle([Ending(job, Succeeded()) for job in held])
    return [job.id for job in held]


def age(days: float, ids: list[int] | None = None) -> None:
    """As if all jobs, or these, had been made and finished so long ago."""
    run_sql(
        "UPDATE django_jobs_job SET created_at = created_at - make_interval(secs => %s),"
        " finished_at = finished_at - make_interval(secs => %s)"
        " WHERE %s::bigint[] IS NULL OR id = ANY(%s::bigint[])",
        [days * DAY, days * DAY, ids, ids],
    )


def test_an_expired_job_goes_with_its_runs_and_a_younger_one_stays() -> None:
    old, young = finish(2)
    age(8, [old])
    assert prune(RULES).deleted == 1
    assert list(Job.objects.values_list("pk", flat=True)) == [young]
    assert list(Run.objects.values_list("job_id", flat=True)) == [young]


def test_a_status_without_a_retention_is_kept_for_ever() -> None:
    noop.enqueue()
    job_operations.cancel(Job.objects.values_list("pk", flat=True))
    age(10_000)
    assert prune(RULES).deleted == 0
    assert prune({"*": {"cancelled": 30 * DAY}}).deleted == 1
    assert prune({"*": {}}) == Page(deleted=0, next_after=None)


def test_no_rule_deletes_a_dead_job() -> None:
    make_dead()
    age(10_000)
    assert prune({"*": {"dead": DAY, "succeeded": DAY}}).deleted == 0
    assert prune({"*": {"dead": DAY, "succeeded": DAY}}, dry_run=True).deleted == 0
    assert Job.objects.count() == 1


def test_live_jobs_are_never_pruned() -> None:
    noop.enqueue()
    noop.using(delay=100).enqueue()
    enqueue_and_claim(queue="bulk")
    run_sql("UPDATE django_jobs_job SET finished_at = created_at")
    age(10_000)
    everything = dict.fromkeys(("ready", "scheduled", "running", "succeeded"), 1.0)
    assert prune({"*": everything}).deleted == 0
    assert Job.objects.count() == 3


def test_a_queue_may_have_its_own_retention() -> None:
    kept, gone = finish(1), finish(1, "bulk")
    age(2)
    rules: Rules = {**RULES, "bulk": {"succeeded": DAY}}
    assert prune(rules).deleted == 1
    assert list(Job.objects.values_list("pk", flat=True)) == kept
    assert not Job.objects.filter(pk__in=gone).exists()


def test_a_queue_without_retention_ignores_the_rule_of_the_others() -> None:
    finish(1, "bulk")
    age(1000)
    assert prune({**RULES, "bulk": {"succeeded": None}}).deleted == 0


def test_a_retention_of_a_million_years_is_for_ever_and_no_error() -> None:
    finish()
    age(1000)
    assert prune({"*": {"succeeded": 3e13}}).deleted == 0


def test_pruning_continues_after_each_page_until_all_jobs_are_younger() -> None:
    ids = finish(25)
    age(8, ids[:12])
    steps, after = [], 0
    while True:
        step = prune(RULES, after=after, page=5)
        steps.append(step.deleted)
        if step.next_after is None:
            break
        after = step.next_after
    assert steps == [5, 5, 2, 0]  # the fourth page is younger than the shortest retention
    assert Job.objects.count() == 13


def test_a_dry_run_counts_the_same_and_deletes_nothing() -> None:
    ids = finish(6)
    age(8, ids[:4])
    assert prune(RULES, dry_run=True) == Page(deleted=4, next_after=None)
    assert Job.objects.count() == 6
    assert prune(RULES) == Page(deleted=4, next_after=None)


@pytest.mark.django_db(transaction=True)
def test_many_that_prune_at_once_delete_each_job_once() -> None:
    finish(300)
    age(8)

    def walk(number: int) -> int:
        deleted, after = 0, 0
        while True:
            step = prune(RULES, after=after, page=40)
            deleted += step.deleted
            if step.next_after is None:
                return deleted
            after = step.next_after

    assert sum(in_threads(5, walk)) == 300
    assert not Job.objects.exists()
    assert not Run.objects.exists()


def test_workers_that_ended_long_ago_go_and_the_living_stay() -> None:
    ended, recent, alive = register_worker(), register_worker(), register_worker()
    workers.end(ended)
    workers.end(recent)
    run_sql(
        "UPDATE django_jobs_worker SET stopped_at = now() - interval '8 days' WHERE id = %s",
        [ended],
    )
    assert prune_old(PRUNE_WORKERS, older_than=7 * DAY) == 1
    assert set(Worker.objects.values_list("pk", flat=True)) == {recent, alive}


def ticks_of(days: list[float]) -> None:
    """Ticks that were written so many days ago, in this order."""
    schedule = due_schedule()
    for number, ago in enumerate(days):
        run_sql(
            "INSERT INTO django_jobs_tick (schedule_id, due_at, outcome, reason, late_seconds,"
            " created_at) VALUES (%s, now() - make_interval(hours => %s), 'fired', '', 0,"
            " now() - make_interval(secs => %s))",
            [schedule.pk, number, ago * DAY],
        )


def test_old_ticks_go_a_page_at_a_time_and_the_younger_stay() -> None:
    ticks_of([100, 99, 98, 91, 89, 1])
    assert [prune_old(PRUNE_TICKS, 3, older_than=90 * DAY) for _ in range(3)] == [3, 1, 0]
    assert Tick.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_concurrent_pruning_of_ticks_is_safe() -> None:
    ticks_of([100] * 60)

    def walk(number: int) -> int:
        return sum(prune_old(PRUNE_TICKS, 7, older_than=90 * DAY) for _ in range(12))

    assert sum(in_threads(4, walk)) == 60
    assert not Tick.objects.exists()


def old_jobs() -> None:
    age(8, finish(2))


def old_workers() -> None:
    for _ in range(2):
        workers.end(register_worker())
    run_sql("UPDATE django_jobs_worker SET stopped_at = now() - interval '8 days'")


def old_keys() -> None:
    for key in "ab":
        noop.using(idempotency_key=key, unique_for=60).enqueue()
    run_sql("UPDATE django_jobs_uniquekey SET expires_at = now() - interval '1 s'")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "table, make_two, pruned",
    [
        ("job", old_jobs, lambda: prune(RULES).deleted),
        ("worker", old_workers, lambda: prune_old(PRUNE_WORKERS, older_than=7 * DAY)),
        ("uniquekey", old_keys, lambda: prune_old(PRUNE_UNIQUE_KEYS)),
        ("tick", lambda: ticks_of([100, 99]), lambda: prune_old(PRUNE_TICKS, older_than=90 * DAY)),
    ],
)
def test_a_row_that_another_session_has_locked_stays_until_the_next_time(
    table: str, make_two: Callable[[], None], pruned: Callable[[], int]
) -> None:
    make_two()
    one = f"SELECT FROM django_jobs_{table} ORDER BY id LIMIT 1 FOR UPDATE"
    with open_elsewhere(one), transaction.atomic():
        run_sql("SET LOCAL lock_timeout = '1s'")
        assert pruned() == 1
    assert pruned() == 1
