"""Keys that stay unique for a time after the enqueue, also when their job has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from pytest_django import Settings

from django_jobs import DuplicateJob, EnqueueError, cancel, enqueue, enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import pruning, unique_keys
from django_jobs.lifecycle.job_columns import GATE_COLUMNS
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.pruning import PRUNE_UNIQUE_KEYS, prune_old
from django_jobs.maintenance.retention import Retention
from django_jobs.models import Job, UniqueKey
from tests.app.jobs import add, noop
from tests.factories import (
    analyze,
    claim_ready,
    enqueue_and_claim,
    explain,
    failure,
    in_threads,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = pytest.mark.django_db

hourly = noop.using(idempotency_key="k", unique_for=3600)


def run_one(worker: int | None = None) -> int:
    """Claim the only ready job and let it succeed; return its id."""
    (held,) = claim_ready(worker or register_worker())
    settle_one(held, Succeeded())
    return held.id


def let_time_pass() -> None:
    """Let all keys be free again."""
    run_sql("UPDATE django_jobs_uniquekey SET expires_at = statement_timestamp()")


def test_a_key_is_unique_after_its_job_succeeded() -> None:
    first = hourly.enqueue()
    assert not first.deduplicated
    assert run_one() == first.pk
    second = hourly.enqueue()
    assert (second.pk, second.status, second.deduplicated) == (first.pk, "succeeded", True)
    assert Job.objects.count() == 1


@pytest.mark.parametrize("end", ["succeeded", "dead", "cancelled"])
def test_the_answer_is_the_job_however_it_ended(end: str) -> None:
    held = enqueue_and_claim(idempotency_key="k", unique_for=timedelta(hours=1))
    if end == "cancelled":
        cancel(held.id)
    settle_one(held, failure(final=True) if end == "dead" else Succeeded())
    if end == "cancelled":
        run_sql("UPDATE django_jobs_job SET status = 'cancelled' WHERE id = %s", [held.id])
    answer = hourly.enqueue()
    assert (answer.pk, answer.status, answer.deduplicated) == (held.id, end, True)


def test_a_key_is_free_when_its_time_is_over() -> None:
    first = hourly.enqueue()
    run_one()
    let_time_pass()
    second = hourly.enqueue()
    assert second.pk != first.pk
    assert not second.deduplicated
    run_one()
    assert hourly.enqueue().pk == second.pk


def test_the_time_counts_from_the_enqueue_on_the_databases_clock() -> None:
    first = noop.using(idempotency_key="k", unique_for=90.5, delay=600).enqueue()
    kept = UniqueKey.objects.get()
    assert (kept.queue, kept.key, kept.job_id) == ("default", "k", first.pk)
    assert kept.expires_at - first.created_at == timedelta(seconds=90.5)


def test_a_job_that_lives_longer_than_its_time_still_holds_its_key() -> None:
    first = hourly.enqueue()
    let_time_pass()
    assert hourly.enqueue().pk == first.pk
    run_one()
    assert hourly.enqueue().pk != first.pk


def test_a_live_job_without_a_time_holds_its_key_as_long_as_it_lives() -> None:
    plain = noop.using(idempotency_key="k").enqueue()
    answer = hourly.enqueue()
    assert (answer.pk, answer.deduplicated) == (plain.pk, True)
    assert not UniqueKey.objects.exists()
    run_one()
    assert hourly.enqueue().pk != plain.pk


def test_a_request_without_a_time_looks_at_live_jobs_only() -> None:
    first = hourly.enqueue()
    assert noop.using(idempotency_key="k").enqueue().pk == first.pk
    run_one()
    second = noop.using(idempotency_key="k").enqueue()
    assert second.pk != first.pk
    assert hourly.enqueue().pk == second.pk, "the live one comes first"
    run_one()
    assert hourly.enqueue().pk == first.pk


def test_the_same_key_in_another_queue_is_unique_there() -> None:
    first = hourly.enqueue()
    run_one()
    assert hourly.using(queue="bulk").enqueue().pk != first.pk


def test_a_deleted_job_still_answers_for_its_key() -> None:
    """Retention may delete it before the time of its key is over."""
    first = hourly.enqueue()
    run_one()
    Job.objects.all().delete()
    answer = hourly.enqueue()
    assert (answer.pk, answer.job_type, answer.queue) == (first.pk, "app.noop", "default")
    assert (answer.idempotency_key, answer.status) == ("k", "")
    assert answer.deduplicated
    assert answer.is_final
    assert not answer.is_live
    assert str(answer) == f"app.noop #{first.pk}"
    with pytest.raises(Job.DoesNotExist):
        assert answer.payload
    with pytest.raises(Job.DoesNotExist):
        answer.refresh_from_db()
    with pytest.raises(DuplicateJob, match=f"job {first.pk}, which was deleted"):
        hourly.using(on_duplicate="raise").enqueue()
    assert not Job.objects.exists()


def test_a_replay_and_its_key_do_not_see_the_time() -> None:
    dead = make_dead(idempotency_key="k", unique_for=3600)
    assert hourly.enqueue().pk == dead.pk
    assert job_operations.replay([dead.pk], check=lambda _: None).done == [dead.pk]
    assert hourly.enqueue().status == "ready"


def test_a_replay_is_refused_while_another_job_holds_the_key() -> None:
    dead = make_dead(idempotency_key="k", unique_for=3600)
    let_time_pass()
    second = hourly.enqueue()
    refused = job_operations.replay([dead.pk], check=lambda _: None).refused
    assert refused == {dead.pk: f"job {second.pk} (ready) holds its idempotency key 'k'"}


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_enqueue_holds_no_key() -> None:
    with transaction.atomic():
        hourly.enqueue()
        transaction.set_rollback(True)
    assert not UniqueKey.objects.exists()
    assert not hourly.enqueue().deduplicated


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_savepoint_gives_the_key_back() -> None:
    with transaction.atomic():
        with transaction.atomic():
            hourly.enqueue()
            transaction.set_rollback(True)
        kept = hourly.enqueue()
        assert not kept.deduplicated
    assert UniqueKey.objects.get().job_id == kept.pk


@pytest.mark.django_db(transaction=True)
def test_twenty_threads_make_one_job_and_all_get_it() -> None:
    jobs = in_threads(20, lambda _: hourly.enqueue())
    assert len({job.pk for job in jobs}) == 1
    assert sum(not job.deduplicated for job in jobs) == 1
    assert Job.objects.count() == 1
    assert UniqueKey.objects.get().job_id == jobs[0].pk


@pytest.mark.django_db(transaction=True)
def test_threads_that_take_a_key_whose_time_is_over_agree_on_one() -> None:
    hourly.enqueue()
    run_one()
    let_time_pass()
    jobs = in_threads(10, lambda _: hourly.enqueue())
    assert len({job.pk for job in jobs}) == 1
    assert sum(not job.deduplicated for job in jobs) == 1
    assert Job.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_of_requests_and_settles_in_many_threads_one_job_is_made() -> None:
    """Also while it moves to the history."""
    worker = register_worker()

    def ask_or_settle(number: int) -> set[int]:
        asked = set()
        for _ in range(10):
            asked.add(hourly.enqueue().pk)
            for held in claim_ready(worker):
                settle_one(held, Succeeded() if number % 2 else failure(final=True))
        return asked

    answers = in_threads(8, ask_or_settle)
    assert len(set().union(*answers)) == 1
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("many", [False, True])
def test_a_key_taken_meanwhile_by_a_request_without_a_time_is_not_reserved(many: bool) -> None:
    """The other one was not committed when the statement began, so that it waited."""
    taken = threading.Event()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "

    def act(number: int) -> list[int]:
        if number == 1:
            assert taken.wait(PATIENCE)
            if many:
                keys = ["k", "other"]
                return enqueue_many("app.noop", [{}] * 2, idempotency_keys=keys, unique_for=60)
            return [hourly.enqueue().pk]
        with transaction.atomic():
            plain = noop.using(idempotency_key="k").enqueue()
            taken.set()
            until(lambda: run_sql(f"{waiting} current_database()") == [(1,)])
        return [plain.pk]

    plain, answer = in_threads(2, act)
    assert answer[:1] == plain
    assert list(UniqueKey.objects.values_list("key", flat=True)) == ["other"] * many


def test_the_numbers_of_statements(django_assert_num_queries: Any) -> None:
    noop.enqueue()
    plain = noop.using(idempotency_key="plain")
    with django_assert_num_queries(1):
        plain.enqueue()
    with django_assert_num_queries(2):
        plain.enqueue()
    with django_assert_num_queries(1):
        hourly.enqueue()
    with django_assert_num_queries(3):
        hourly.enqueue()


def test_many_keys_are_unique_for_their_time() -> None:
    yearly = add.using(unique_for=timedelta(days=365))
    payloads = [{"first": number} for number in range(6)]
    keys = ["b", None, "a", "b", "c", None]
    ids = yearly.enqueue_many(payloads, idempotency_keys=keys)
    assert ids[0] == ids[3]
    assert len(set(ids)) == 5
    assert ids == [*sorted(ids[:3]), ids[0], *sorted(ids[4:])]
    assert Job.objects.get(pk=ids[0]).payload == {"first": 0}
    assert dict(UniqueKey.objects.values_list("key", "job_id")) == {
        **{"a": ids[2], "b": ids[0], "c": ids[4]}
    }
    for held in claim_ready(register_worker()):
        settle_one(held, Succeeded())
    again = yearly.enqueue_many(payloads, idempotency_keys=["b", None, "a", "d", "c", "d"])
    assert (again[0], again[2], again[4]) == (ids[0], ids[2], ids[4])
    assert again[3] == again[5]
    assert not {again[1], again[3]} & set(ids)


def test_many_keys_of_live_and_of_deleted_jobs_are_answered_with_their_ids() -> None:
    live = add.using(idempotency_key="live").enqueue(1)
    (gone,) = enqueue_many("app.add", [{"first": 1}], idempotency_keys=["gone"], unique_for=60)
    Job.objects.filter(pk=gone).delete()
    ids = enqueue_many(
        "app.add", [{"first": 1}] * 3, idempotency_keys=["gone", "live", "new"], unique_for=60
    )
    assert ids[:2] == [gone, live.pk]
    assert sorted(UniqueKey.objects.values_list("key", flat=True)) == ["gone", "new"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [50, 500])
@pytest.mark.parametrize("options", [{}, {"unique_for": 60}], ids=["live", "for a time"])
def test_batches_of_the_same_keys_from_many_threads_agree_on_the_holders(
    count: int, options: dict[str, Any]
) -> None:
    keys = [f"key-{number}" for number in range(count)]

    def ask(number: int) -> list[int]:
        order = keys if number % 2 else keys[::-1]
        payloads = [{"first": number}] * count
        ids = enqueue_many("app.add", payloads, idempotency_keys=order, **options)
        return ids if number % 2 else ids[::-1]

    answers = in_threads(6, ask)
    assert len({tuple(answer) for answer in answers}) == 1
    assert Job.objects.count() == count
    assert UniqueKey.objects.count() == (count if options else 0)


@pytest.mark.django_db(transaction=True)
def test_batches_with_and_without_a_time_agree_on_the_holders() -> None:
    keys = [f"key-{number}" for number in range(300)]

    def ask(number: int) -> list[int]:
        options: dict[str, Any] = {"unique_for": 60} if number % 2 else {}
        return enqueue_many("app.noop", [{}] * 300, idempotency_keys=keys, **options)

    answers = in_threads(6, ask)
    assert len({tuple(answer) for answer in answers}) == 1
    assert Job.objects.count() == 300
    jobs = set(Job.objects.values_list("pk", flat=True))
    assert set(UniqueKey.objects.values_list("job_id", flat=True)) <= jobs


def test_expired_keys_are_deleted_in_batches() -> None:
    enqueue_many("app.noop", [{}] * 5, idempotency_keys=list("abcde"), unique_for=60)
    kept = hourly.enqueue()
    run_sql("UPDATE django_jobs_uniquekey SET expires_at = now() - interval '1 s' WHERE key <> 'k'")
    assert prune_old(PRUNE_UNIQUE_KEYS, page=2) == 2
    assert Retention(page=2, budget=60).run_once() == 3
    assert UniqueKey.objects.get().job_id == kept.pk


def test_retention_of_nothing_keeps_the_key(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"succeeded": 0}}
    held = enqueue_and_claim(idempotency_key="k", unique_for=3600)
    settle_one(held, Succeeded(), kept=False)
    assert not Job.objects.exists()
    assert hourly.enqueue().pk == held.id


@pytest.mark.parametrize(
    "request_without_key",
    [
        noop.using(unique_for=60).enqueue,
        lambda: enqueue("app.noop", unique_for=60),
        lambda: enqueue_many("app.noop", [{}], unique_for=60),
    ],
)
def test_a_time_without_a_key_is_refused(request_without_key: Callable[[], object]) -> None:
    with pytest.raises(EnqueueError, match=r"app.noop: unique_for needs an idempotency key"):
        request_without_key()
    assert not Job.objects.exists()


@pytest.mark.usefixtures("fresh_tables")
def test_keys_are_found_by_their_indexes() -> None:
    add.enqueue_many({"first": number} for number in range(20_000))
    keys = [f"key-{number}" for number in range(20_000)]
    enqueue_many("app.noop", [{}] * 20_000, idempotency_keys=keys, unique_for=60)
    analyze("django_jobs_job", "django_jobs_uniquekey")
    parameters = {
        **hourly.request().parameters,
        **dict.fromkeys(GATE_COLUMNS),
        "payload": "{}",
        "key": "key-7",
        "payloads": ["{}"] * 50,
        "keys": keys[:50],
    }
    gates = {name: [None] * 50 for name in GATE_COLUMNS}
    for statement, values in (
        (unique_keys.ENQUEUE_UNIQUE, parameters),
        (unique_keys.ENQUEUE_MANY_UNIQUE, {**parameters, **gates}),
        (unique_keys.HOLDERS, parameters),
        (unique_keys.RELEASE, parameters),
    ):
        plan = explain(statement, values)
        read = [node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"]
        assert read == [], statement


@pytest.mark.usefixtures("fresh_tables")
def test_expired_keys_are_found_by_an_index() -> None:
    keys = [f"key-{number}" for number in range(5_000)]
    enqueue_many("app.noop", [{}] * 5_000, idempotency_keys=keys, unique_for=60)
    analyze("django_jobs_uniquekey")
    plan = explain(pruning.PRUNE_UNIQUE_KEYS, {"page": 2_000})
    assert "django_jobs_unique_key_expiry" in {node.get("Index Name") for node in plan}
    assert "Seq Scan" not in {node["Node Type"] for node in plan}


@pytest.mark.django_db(transaction=True)
def test_in_manual_transaction_management_key_and_job_are_the_callers() -> None:
    transaction.set_autocommit(False)
    try:
        hourly.enqueue()
        transaction.rollback()
        assert not UniqueKey.objects.exists()
        kept = hourly.using(on_duplicate="replace").enqueue()
        assert hourly.enqueue().pk == kept.pk
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert in_threads(1, lambda _: UniqueKey.objects.get().job_id) == [kept.pk]
