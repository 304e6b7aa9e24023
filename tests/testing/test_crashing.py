"""Attempts that end as if their process had died, and what runs again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_jobs.models import Job, Receipt
from django_jobs.signals import job_finished
from django_jobs.testing import crash_at, expire_lease, run_jobs
from tests.app import jobs, kit_jobs
from tests.app.models import Effect
from tests.factories import heard

pytestmark = pytest.mark.django_db

LOST_THEN_DONE = ["lost", "succeeded"]


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """The calls that handlers have made outside."""
    made: list[str] = []
    kit_jobs.calls["pay"] = lambda: made.append("pay") or "paid"
    yield made
    kit_jobs.calls.clear()


def outcomes() -> list[str]:
    return [run.outcome for run in run_jobs()]


def notes() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("note", flat=True))


def test_what_a_handler_has_done_stays_and_it_runs_again(calls: list[str]) -> None:
    job = kit_jobs.effect_and_call.enqueue("twice", "pay")
    with crash_at("after_effect"):
        assert outcomes() == LOST_THEN_DONE
    assert notes() == ["twice", "twice"]
    assert calls == ["pay", "pay"]
    job.refresh_from_db()
    assert (job.status, job.attempt, job.crashes) == ("succeeded", 2, 0)


def test_an_answer_that_is_stored_is_not_asked_for_again(calls: list[str]) -> None:
    kit_jobs.call_once.enqueue("pay")
    with crash_at("after_effect"):
        assert outcomes() == LOST_THEN_DONE
    assert calls == ["pay"]
    assert notes() == ["paid", "paid"]


def test_an_answer_that_is_not_stored_is_asked_for_again(calls: list[str]) -> None:
    kit_jobs.call_once.enqueue("pay")
    with crash_at("after_call"):
        assert outcomes() == LOST_THEN_DONE
    assert calls == ["pay", "pay"]
    assert notes() == ["paid"]


@pytest.mark.parametrize(
    "point, made, noted", [("after_call", 2, ["paid"] * 2), ("after_effect", 1, ["paid"] * 3)]
)
def test_an_effect_is_had_by_all_jobs_once_its_answer_is_stored(
    calls: list[str], point: str, made: int, noted: list[str]
) -> None:
    kit_jobs.call_once_for_all_jobs.enqueue("pay")
    kit_jobs.call_once_for_all_jobs.enqueue("pay")
    with crash_at(point):
        assert sorted(outcomes()) == ["lost", "succeeded", "succeeded"]
    assert calls == ["pay"] * made
    assert notes() == noted


def test_an_exactly_once_handler_has_its_effect_once() -> None:
    kit_jobs.once_and_for_all.enqueue("one")
    with crash_at("after_effect"):
        assert outcomes() == LOST_THEN_DONE
    assert notes() == ["one"]


@pytest.mark.django_db(transaction=True)
def test_crashes_outside_of_a_transaction(calls: list[str]) -> None:
    kit_jobs.once_and_for_all.enqueue("one")
    kit_jobs.call_once.enqueue("pay")
    with crash_at("after_effect"), crash_at("after_call"):
        assert outcomes() == ["lost", "succeeded", "lost", "succeeded"]
    assert (notes(), calls) == (["one", "paid"], ["pay", "pay"])


def test_a_crash_before_the_handler_has_no_effect(calls: list[str]) -> None:
    kit_jobs.effect_and_call.enqueue("once", "pay")
    with crash_at("before_handler"):
        assert outcomes() == LOST_THEN_DONE
    assert notes() == ["once"]


def test_a_crash_after_the_settle_repeats_nothing(calls: list[str]) -> None:
    kit_jobs.effect_and_call.enqueue("once", "pay")
    with heard(job_finished) as finished, crash_at("after_settle"):
        assert outcomes() == ["succeeded"]
    assert notes() == ["once"]
    assert finished == [], "its process was gone before it could send the signal"


@pytest.mark.parametrize("number, expected", [(1, ["it"]), (2, ["it", "after it"])])
def test_a_crash_between_the_commits_of_a_handler(number: int, expected: list[str]) -> None:
    job = kit_jobs.effect_after_commit.enqueue("it")
    with crash_at("after_commit", number=number):
        run_jobs(until=lambda: Job.objects.filter(pk=job.pk, crashes=1).exists())
    assert notes() == expected


def test_a_dead_process_does_nothing_more() -> None:
    kit_jobs.clean_up.enqueue()
    with crash_at("after_commit"):
        assert outcomes() == LOST_THEN_DONE
    assert notes() == ["work", "work", "cleaned up"]


@pytest.mark.parametrize("point", ["after_effect", "after_call"])
def test_an_async_handler_crashes_as_well(point: str) -> None:
    kit_jobs.async_effect.enqueue("async")
    with crash_at(point):
        assert outcomes() == LOST_THEN_DONE
    assert notes() == ["async", "async"]


def test_a_fan_out_that_crashes_is_continued() -> None:
    kit_jobs.fan_out.enqueue(3)
    with crash_at("after_commit", job_type=kit_jobs.fan_out):
        assert outcomes() == ["lost", *["succeeded"] * 5]
    assert Job.objects.get(job_type="app.total").result["sum"] == 3


def test_a_job_that_crashes_too_often_is_dead() -> None:
    job = jobs.noop.enqueue()
    with ExitStack() as crashes:
        for _ in range(3):
            crashes.enter_context(crash_at("after_effect"))
        assert outcomes() == ["lost"] * 3
    assert Job.objects.get(pk=job.pk).status == "dead"


def test_a_job_that_is_delivered_at_most_once_is_dead() -> None:
    job = kit_jobs.at_most_once.enqueue("once")
    with crash_at("after_effect"):
        assert outcomes() == ["lost"]
    job.refresh_from_db()
    assert (job.status, notes()) == ("dead", ["once"])


def test_a_crash_that_did_not_happen_is_an_error() -> None:
    jobs.noop.enqueue()
    with (
        pytest.raises(AssertionError, match="after_call was passed never, not 1 times"),
        crash_at("after_call"),
    ):
        run_jobs()


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({"point": "after_efect"}, "no point is named 'after_efect'; known are: before_handler"),
        ({"point": "after_effect", "number": 0}, "has the number 1, not 0"),
        ({"point": "after_commit", "number": "2"}, "has the number 1, not '2'"),
        ({"point": "after_commit", "number": 1.5}, "has the number 1, not 1.5"),
        ({"point": "after_commit", "number": True}, "has the number 1, not True"),
    ],
)
def test_other_crashes_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem), crash_at(**arguments):
        pass


def test_a_job_whose_lease_ran_out_runs_again() -> None:
    other = jobs.noop.enqueue()
    job = jobs.write_effect.enqueue("once")
    expire_lease(job)
    job.refresh_from_db()
    assert (job.status, job.attempt, job.crashes) == ("ready", 1, 1)
    other.refresh_from_db()
    assert (other.status, other.attempt) == ("ready", 0)
    assert outcomes() == ["succeeded"] * 2
    assert notes() == ["once"]


def test_an_attempt_that_loses_its_lease_settles_nothing() -> None:
    job = kit_jobs.effect_and_call.enqueue("twice", "expire")
    stops = []

    def expire() -> None:
        row = Job.objects.get(pk=job.pk)
        if row.attempt == 1:
            expire_lease(row)
        stops.append(kit_jobs.this_run().should_stop())

    kit_jobs.calls["expire"] = expire
    assert outcomes() == LOST_THEN_DONE
    assert stops == [True, False]
    assert notes() == ["twice", "twice"]
    del kit_jobs.calls["expire"]


def test_the_answer_of_an_attempt_without_a_lease_is_kept() -> None:
    job = kit_jobs.call_once.enqueue("expire")
    calls = []

    def expire() -> str:
        calls.append(1)
        expire_lease(Job.objects.get(pk=job.pk))
        return "answer"

    kit_jobs.calls["expire"] = expire
    assert outcomes() == LOST_THEN_DONE
    assert (len(calls), Receipt.objects.get(job=job).prevented) == (1, 1)
    del kit_jobs.calls["expire"]


def test_no_worker_can_have_a_job_that_has_ended() -> None:
    job = jobs.noop.enqueue()
    run_jobs()
    with pytest.raises(ValueError, match=r"is succeeded; no worker can have it"):
        expire_lease(job)
