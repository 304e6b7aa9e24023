"""Answers that are kept, and given once more."""

from __future__ import annotations

import pytest

from django_jobs import LeaseLost
from django_jobs.lifecycle import progress
from django_jobs.lifecycle.progress import (
    PRUNE_EFFECTS,
    Answer,
    EffectBusy,
    hold,
    look_up,
    store,
    store_effect,
)
from django_jobs.lifecycle.pruning import prune_old
from django_jobs.models import Effect, Job, Receipt
from tests.factories import (
    analyze,
    enqueue_and_claim,
    explain,
    failure,
    in_threads,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db


def test_an_answer_is_stored_and_its_reuse_is_counted() -> None:
    held = enqueue_and_claim()
    assert look_up(held, "charge") is None
    assert store(held, "charge", '{"id": 7}') == '{"id": 7}'
    assert look_up(held, "charge") == Answer('{"id": 7}', 1)
    assert look_up(held, "charge") == Answer('{"id": 7}', 1)
    assert look_up(held, "another") is None
    assert Receipt.objects.get().prevented == 2


def test_the_first_answer_is_kept() -> None:
    held = enqueue_and_claim()
    assert store(held, "charge", "1") == "1"
    assert store(held, "charge", "2") == "1"
    assert Receipt.objects.get().answer == 1


def test_a_lost_attempt_may_store_a_receipt_but_not_look_one_up() -> None:
    held = enqueue_and_claim()
    late = held._replace(attempt=0)
    assert store(late, "charge", "1") == "1"
    with pytest.raises(LeaseLost, match=f"job {held.id} attempt 0 is no longer this worker's"):
        look_up(late, "charge")
    assert Receipt.objects.get().prevented == 0
    assert look_up(held, "charge") == Answer("1", 0)


def test_a_null_by_hand_is_an_answer_too() -> None:
    held = enqueue_and_claim()
    store(held, "charge", "1")
    Receipt.objects.update(answer=None)
    assert look_up(held, "charge") == Answer("null", 1)


@pytest.mark.django_db(transaction=True)
def test_of_many_jobs_at_once_one_makes_the_call_of_an_effect() -> None:
    jobs = [enqueue_and_claim() for _ in range(6)]

    def may_call(number: int) -> bool:
        try:
            return hold(jobs[number], "order-7", 60.0) is None
        except EffectBusy:
            return False

    assert sum(in_threads(6, may_call)) == 1
    caller = next(one for one in jobs if one.id == Effect.objects.get().job_id)
    Job.objects.filter(pk=caller.id).update(status="ready", worker=None)
    rest = [one for one in jobs if one != caller]
    jobs[:5] = rest
    assert sum(in_threads(5, may_call)) == 1


def test_an_attempt_that_lost_its_job_may_not_hold_an_effect() -> None:
    held = enqueue_and_claim()
    with pytest.raises(LeaseLost):
        hold(held._replace(attempt=0), "order-7", 60.0)
    assert not Effect.objects.exists()


def test_an_effect_is_deleted_after_its_time_unless_its_call_is_being_made() -> None:
    calling, answered, kept = (enqueue_and_claim() for _ in range(3))
    for held, keep in (calling, 0.0), (answered, 0.0), (kept, 60.0):
        assert hold(held, f"order-{held.id}", keep) is None
    for held, keep in (answered, 0.0), (kept, 60.0):
        store_effect(held, f"order-{held.id}", keep, "1")
    assert prune_old(PRUNE_EFFECTS, page=1) == 1
    assert prune_old(PRUNE_EFFECTS) == 0
    assert set(Effect.objects.values_list("job_id", flat=True)) == {calling.id, kept.id}
    settle_one(calling, failure())
    assert prune_old(PRUNE_EFFECTS) == 1
    assert Effect.objects.get().job_id == kept.id


@pytest.mark.usefixtures("fresh_tables")
def test_effects_are_found_by_their_indexes() -> None:
    held = enqueue_and_claim()
    run_sql(
        "INSERT INTO django_jobs_effect (key, job_id, attempt, made_at, expires_at)"
        " SELECT n::text, n, 1, now(), now() + interval '1 h' FROM generate_series(1, 20000) AS n"
    )
    analyze("django_jobs_effect", "django_jobs_job")
    parameters = {"id": held.id, "attempt": 1, "worker": held.worker, "key": "7", "keep": 60.0}
    others = {"holder": 7, "held": 1, "answer": "1"}
    for statement in (
        *(progress.HOLD, progress.TAKE_EFFECT, progress.STORE_EFFECT, progress.STORED_EFFECT),
        progress.FREE_EFFECT,
    ):
        plan = explain(statement, {**parameters, **others})
        read = {node.get("Relation Name") for node in plan if node["Node Type"] == "Seq Scan"}
        assert "django_jobs_effect" not in read, statement
    plan = explain(progress.PRUNE_EFFECTS, {"page": 2_000})
    assert "django_jobs_effect_expiry" in {node.get("Index Name") for node in plan}


@pytest.mark.django_db(transaction=True)
def test_of_many_that_store_at_once_all_get_the_first_answer() -> None:
    held = enqueue_and_claim()
    answers = in_threads(6, lambda number: store(held, "charge", str(number)))
    assert len(set(answers)) == 1
    assert Receipt.objects.count() == 1
