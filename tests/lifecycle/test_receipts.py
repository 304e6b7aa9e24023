"""Answers that are kept, and given once more."""

from __future__ import annotations

import pytest

from django_jobs import LeaseLost
from django_jobs.lifecycle.progress import Answer, look_up, store
from django_jobs.models import Receipt
from tests.factories import enqueue_and_claim, in_threads

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
def test_of_many_that_store_at_once_all_get_the_first_answer() -> None:
    held = enqueue_and_claim()
    answers = in_threads(6, lambda number: store(held, "charge", str(number)))
    assert len(set(answers)) == 1
    assert Receipt.objects.count() == 1
