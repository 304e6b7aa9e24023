"""Jobs that are enqueued after the commit of data in another database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from django.db import connections, transaction
from django.test import TestCase

from django_jobs import EnqueueError, PayloadError, UnknownQueue
from django_jobs.models import Job
from tests.app.gate_jobs import charge_account
from tests.app.jobs import add, noop

pytestmark = pytest.mark.django_db(transaction=True)


class Refused(Exception):
    """Rolls a block back."""


@pytest.fixture
def elsewhere(other_database: str) -> Iterator[str]:
    """The alias of the data."""
    yield other_database
    connections[other_database].close()
    del connections[other_database]


def roll_back(call: Callable[[], object], alias: str) -> None:
    """Call it in a transaction that is rolled back."""
    with transaction.atomic(using=alias):
        call()
        transaction.set_rollback(True, using=alias)


def enqueued() -> list[dict[str, int]]:
    return list(Job.objects.order_by("id").values_list("payload", flat=True))


def test_without_a_transaction_it_is_enqueued_at_once() -> None:
    noop.enqueue_on_commit()
    assert enqueued() == [{}]


def test_it_is_enqueued_after_the_commit_of_the_other_database(elsewhere: str) -> None:
    with transaction.atomic(using=elsewhere):
        add.enqueue_on_commit(1, second=2)
        assert enqueued() == []
    assert enqueued() == [{"first": 1, "second": 2}]


def test_it_is_not_enqueued_if_the_other_database_rolls_back(elsewhere: str) -> None:
    roll_back(noop.enqueue_on_commit, elsewhere)
    assert enqueued() == []


@pytest.mark.parametrize("jobs_first", [True, False])
@pytest.mark.parametrize("fails", [None, "inner", "outer"])
def test_all_transactions_have_to_commit(
    elsewhere: str, jobs_first: bool, fails: str | None
) -> None:
    outer, inner = ("default", elsewhere) if jobs_first else (elsewhere, "default")
    try:
        with transaction.atomic(using=outer):
            try:
                with transaction.atomic(using=inner):
                    noop.enqueue_on_commit()
                    if fails == "inner":
                        raise Refused
            except Refused:
                pass
            assert enqueued() == []
            if fails == "outer":
                raise Refused
    except Refused:
        pass
    assert len(enqueued()) == (fails is None)


def test_an_enqueue_is_atomic_with_its_own_database_and_no_other(elsewhere: str) -> None:
    """What docs/databases.md warns of."""
    roll_back(noop.enqueue, elsewhere)
    assert enqueued() == [{}]
    roll_back(noop.enqueue, "default")
    assert enqueued() == [{}]


@pytest.mark.parametrize(
    "call, problem",
    [
        (lambda: charge_account.enqueue_on_commit(None), "'account_id' is None"),  # type: ignore[arg-type]
        (noop.using(unique_for=60).enqueue_on_commit, "unique_for needs an idempotency key"),
        (noop.using(on_duplicate="raise").enqueue_on_commit, "on_duplicate needs an idempotency"),
        (
            noop.using(idempotency_key="k", key_scope="tenant").enqueue_on_commit,
            "key_scope='tenant' needs a tenant",
        ),
    ],
)
def test_gates_and_a_missing_key_are_refused_inside_the_transaction(
    call: Callable[[], None], problem: str
) -> None:
    with transaction.atomic():
        with pytest.raises(EnqueueError, match=problem):
            call()
        assert not transaction.get_connection().run_on_commit
    assert enqueued() == []


def test_it_is_refused_at_once_and_keeps_its_payload(elsewhere: str) -> None:
    with pytest.raises(PayloadError):
        add.enqueue_on_commit(1, third=3)  # type: ignore[call-arg]
    with pytest.raises(UnknownQueue):
        noop.using(queue="nowhere").enqueue_on_commit()
    changing = {"a": 1}
    with transaction.atomic(using=elsewhere):
        add.enqueue_on_commit(changing)  # type: ignore[arg-type]
        changing["a"] = 2
    assert enqueued() == [{"first": {"a": 1}}]
    assert not connections["default"].in_atomic_block


def test_in_a_test_case_of_two_databases_one_capture_is_enough(elsewhere: str) -> None:
    with ExitStack() as test:
        for alias in "default", elsewhere:
            block = transaction.atomic(using=alias)
            block._from_testcase = True
            test.enter_context(block)
        with TestCase.captureOnCommitCallbacks(using=elsewhere, execute=True):
            with transaction.atomic(using=elsewhere):
                add.enqueue_on_commit(1, second=2)
            assert enqueued() == []
        assert enqueued() == [{"first": 1, "second": 2}]
        noop.enqueue_on_commit()
        assert len(enqueued()) == 2, "at once, as without a test"


@pytest.mark.parametrize("alias", ["default", "other"])
def test_a_manual_transaction_is_refused(elsewhere: str, alias: str) -> None:
    transaction.set_autocommit(False, using=alias)
    try:
        with pytest.raises(transaction.TransactionManagementError, match="manual transaction"):
            noop.enqueue_on_commit()
        transaction.rollback(using=alias)
    finally:
        transaction.set_autocommit(True, using=alias)
    assert enqueued() == []
    with transaction.atomic(using=elsewhere):
        noop.enqueue_on_commit()
    assert enqueued() == [{}]
