"""The maintenance task that deletes dead jobs beyond their limits, and whose limit each has."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries, Settings

from django_jobs.domain.retention import Kept
from django_jobs.lifecycle.dead_letters import DeadLimit
from django_jobs.maintenance.retention import Retention, limits_in_force, prune_dead_letters
from django_jobs.maintenance.tasks import maintenance_tasks
from django_jobs.models import Job, Queue
from django_jobs.signals import pre_prune_dead, worker_event
from tests.app.jobs import add
from tests.factories import declared, heard, make_dead
from tests.lifecycle.test_dead_letters import dead, receiving, there
from tests.lifecycle.test_pruning import age

pytestmark = pytest.mark.django_db

DAY = 86_400.0


def of_shop() -> None:
    pass


@pytest.fixture
def number(settings: Settings) -> None:
    """Two dead jobs of each queue are kept."""
    settings.DJANGO_JOBS = {"RETENTION": {"dead": {"number": 2}}}


# Whose limit holds


def test_by_default_all_dead_jobs_are_kept_and_none_is_looked_for(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    dead(3)
    age(10_000)
    with django_assert_num_queries(1):  # the retention of the queues
        assert prune_dead_letters(budget=60) == 0
    assert limits_in_force() == []


def test_the_setting_limits_each_queue_without_its_own(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"dead": {"age": "180d", "number": 100}}}
    Queue.objects.filter(name="bulk").update(retention={"dead": {"number": 7}})
    Queue.objects.filter(name="emails").update(retention={"dead": None})
    Queue.objects.filter(name="strict").update(retention={"succeeded": "1h"})
    for queue in ("default", "bulk", "emails", "strict"):
        make_dead(queue=queue)
    general = Kept(age=180 * DAY, number=100)
    assert limits_in_force() == [
        DeadLimit(column="queue", name="bulk", kept=Kept(number=7), but=[]),
        DeadLimit(column="queue", name="default", kept=general, but=[]),
        DeadLimit(column="queue", name="strict", kept=general, but=[]),
    ]


def test_a_plain_age_is_a_limit_of_dead_jobs(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"dead": "30d"}}
    old, young = dead(2)
    age(31, [old])
    assert prune_dead_letters(budget=60) == 1
    assert there() == [young]


def test_a_job_types_own_limit_wins_over_its_queues(number: None) -> None:
    with declared(of_shop, name="shop.one", retention={"dead": {"number": 1}}) as one:
        of_type, others = dead(4, one), dead(3)
        assert prune_dead_letters(budget=60) == 4
        # Neither counts for the other.
        assert there() == sorted([of_type[3], *others[1:]])


def test_a_job_type_may_keep_all(number: None) -> None:
    with declared(of_shop, name="shop.all", retention={"dead": None}) as kept:
        of_type, others = dead(4, kept), dead(3)
        assert prune_dead_letters(budget=60) == 1
        assert there() == sorted([*of_type, *others[1:]])


def test_a_limit_of_a_job_type_applies_without_other_limits() -> None:
    with declared(of_shop, name="shop.old", retention={"dead": "1d"}) as old:
        of_type, others = dead(3, old), dead(3)
        assert prune_dead_letters(budget=60) == 2
        assert there() == sorted([of_type[2], *others])


def test_a_limit_applies_to_each_former_name_too() -> None:
    with declared(
        of_shop, name="shop.new", aliases=["shop.old"], retention={"dead": {"number": 1}}
    ) as renamed:
        former = dead(2, renamed)
        Job.objects.update(job_type="shop.old")
        assert prune_dead_letters(budget=60) == 1
        assert there() == [former[1]]


@pytest.mark.parametrize("own", ["soon", 7, {"dead": {"number": "3"}}, {"dead": {"numbers": 1}}])
def test_a_limit_of_a_queue_that_cannot_be_read_keeps_its_jobs(number: None, own: Any) -> None:
    Queue.objects.filter(name="bulk").update(retention=own)
    ids = [*dead(3, queue="bulk"), *dead(3)]
    assert prune_dead_letters(budget=60) == 1
    assert there() == [*ids[:3], *ids[4:]]


# The task


def test_one_run_of_the_task_applies_the_number(number: None) -> None:
    ids = [*dead(6), *dead(5, queue="bulk")]
    task = next(task for task in maintenance_tasks() if task.name == "dead_letters")
    assert not task.has_more(task.run_once())
    assert there() == [*ids[4:6], *ids[9:]]


def test_the_retention_task_deletes_no_dead_job(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"dead": "1d", "succeeded": "1d"}}
    ids = dead(3)
    age(100)
    with heard(pre_prune_dead) as sent:
        assert Retention(budget=60).run_once() == 0
    assert there() == ids
    assert sent == []


def test_a_page_of_each_limit_is_deleted_even_without_budget(number: None) -> None:
    dead(6)
    dead(6, queue="bulk")
    assert [prune_dead_letters(page=2, budget=0) for _ in range(3)] == [4, 4, 0]


def test_all_pages_go_within_the_budget(number: None) -> None:
    dead(9)
    assert prune_dead_letters(page=2, budget=60) == 7


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_exits_keeps_the_jobs_and_ends_no_process(number: None) -> None:
    kept = dead(4)
    with receiving(lambda **keywords: sys.exit("disk full")):
        assert prune_dead_letters(budget=60) == 0
    assert there() == kept


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_raises_keeps_only_its_batch_and_is_logged(
    number: None,
) -> None:
    kept, others = dead(4, add, 1, 2, queue="bulk"), dead(4)
    calls = []

    def export(sender: str, job_ids: list[int], **keywords: Any) -> None:
        if sender == "app.add":
            calls.append(job_ids)
            if len(calls) == 1:
                raise OSError("disk full")

    with receiving(export), heard(worker_event) as events:
        assert prune_dead_letters(budget=60) == 2
        assert there() == [*kept, *others[2:]]
        (event,) = events
        assert (event["sender"], event["level"]) == ("dead_not_pruned", 40)
        assert event["fields"] == {
            "queue": "bulk",
            "reason": "a receiver of pre_prune_dead raised OSError: disk full",
        }
        assert prune_dead_letters(budget=60) == 2
    assert calls == [kept[:2], kept[:2]]
    assert there() == [*kept[2:], *others[2:]]
    assert len(events) == 1
