"""What the assertions of the testing kit accept, and what they say otherwise."""

from __future__ import annotations

import pytest

from django_jobs import PayloadError, UnknownJobType, UnknownQueue
from django_jobs.testing import assert_enqueued, capture_jobs, crash_at, refute_enqueued, run_jobs
from tests.app import flow_jobs, jobs, kit_jobs, tasks

pytestmark = pytest.mark.django_db


def test_a_job_is_found_by_its_type_its_queue_and_some_of_its_arguments() -> None:
    job = jobs.add.using(queue="bulk", delay=60).enqueue(1, second=2)
    for expected in (jobs.add, "app.add"):
        assert assert_enqueued(expected) == [job]
    assert_enqueued(jobs.add, payload={"second": 2}, queue="bulk", count=1)
    refute_enqueued(jobs.add, payload={"second": 3})
    refute_enqueued(jobs.add, queue="default")
    refute_enqueued(jobs.noop)
    assert_enqueued(jobs.noop, count=0)


def test_a_job_that_has_run_is_not_enqueued_any_more() -> None:
    jobs.add.enqueue(1)
    run_jobs()
    refute_enqueued(jobs.add)
    with pytest.raises(
        AssertionError, match=r"none is\. There are:\n  #\d+ app.add .*: it is succ"
    ):
        assert_enqueued(jobs.add)


def test_the_error_names_what_is_different_of_each_job_the_nearest_first() -> None:
    other = jobs.noop.enqueue()
    near = jobs.add.enqueue(1)
    with pytest.raises(AssertionError) as raised:
        assert_enqueued(jobs.add, payload={"first": 7, "second": 1}, queue="bulk")
    assert str(raised.value) == (
        "a job of app.add with {'first': 7, 'second': 1} in bulk should be enqueued; none is. "
        "There are:\n"
        f"  #{near.pk} app.add {{'first': 1}} ready in default: its queue is 'default', not "
        "'bulk'; its first is 1, not 7; it has no second\n"
        f"  #{other.pk} app.noop {{}} ready in default: another job type; its queue is 'default', "
        "not 'bulk'; it has no first; it has no second"
    )


def test_the_error_counts_the_jobs() -> None:
    jobs.add.enqueue(1)
    jobs.add.enqueue(1)
    with pytest.raises(
        AssertionError, match=r"3 jobs of app\.add should be enqueued; 2 of them are"
    ):
        assert_enqueued(jobs.add, count=3)
    with pytest.raises(AssertionError, match=r"no job of app.add .* 2 are:\n  #\d+ app.add"):
        refute_enqueued("app.add")


def test_the_error_says_that_there_are_no_jobs() -> None:
    with pytest.raises(AssertionError, match=r"none is\. There are no jobs at all"):
        assert_enqueued(jobs.add)


def test_an_unknown_job_type_is_refused() -> None:
    with pytest.raises(UnknownJobType, match=r"app\.ad"):
        refute_enqueued("app.ad")


def test_jobs_made_in_any_way_are_captured() -> None:
    jobs.noop.enqueue()
    with capture_jobs() as captured:
        first = jobs.add.enqueue(1)
        ids = jobs.add.enqueue_many([{"first": 2}, {"first": 3}])
        run_jobs()
        kit_jobs.fan_out.enqueue(1)
    assert [job.pk for job in captured][:3] == [first.pk, *ids]
    assert [job.status for job in captured] == ["succeeded"] * 3 + ["ready"]


def test_a_refutation_that_no_job_could_meet_is_an_error() -> None:
    with pytest.raises(UnknownQueue, match=r"refute_enqueued\(\): no queue is named 'defalt'"):
        refute_enqueued(jobs.add, queue="defalt")
    with pytest.raises(PayloadError, match=r"app\.add\(.* does not take frist"):
        refute_enqueued(jobs.add, payload={"frist": 1})
    refute_enqueued(flow_jobs.gather, payload={"anything": 1})


def test_a_task_of_django_stands_for_its_job_type() -> None:
    tasks.total.enqueue(1, 2)
    assert_enqueued(tasks.total, payload={"left": 1}, count=1)
    refute_enqueued(tasks.fail)
    assert not run_jobs(job_type=tasks.fail)
    with crash_at("after_effect", job_type=tasks.total):
        runs = run_jobs(job_type=tasks.total)
    assert [run.outcome for run in runs] == ["lost", "succeeded"]
    refute_enqueued(tasks.total)
