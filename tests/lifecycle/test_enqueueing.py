"""Writing new jobs: in the caller's transaction, one per key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import PayloadError, enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import bulk_insert, enqueueing, notifying
from django_jobs.lifecycle.bulk_insert import copy_in
from django_jobs.lifecycle.enqueueing import BATCH
from django_jobs.models import Job, Queue
from tests.app.jobs import add, noop, write_effect
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    explain,
    failure,
    in_threads,
    listening,
    register_worker,
    run_sql,
    settle_one,
)


class Abandoned(Exception):
    """Raised to leave a block."""


def enqueue_then_fail() -> None:
    noop.enqueue()
    raise Abandoned


@pytest.mark.django_db(transaction=True)
def test_a_job_is_seen_by_others_only_once_its_transaction_commits() -> None:
    def seen_by_others() -> int:
        return in_threads(1, lambda _: Job.objects.count())[0]

    with transaction.atomic():
        noop.enqueue()
        assert seen_by_others() == 0
    assert seen_by_others() == 1


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_transaction_leaves_no_job() -> None:
    with pytest.raises(Abandoned), transaction.atomic():
        enqueue_then_fail()
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_savepoint_takes_its_job_and_leaves_the_others() -> None:
    with transaction.atomic():
        kept = noop.enqueue()
        with pytest.raises(Abandoned), transaction.atomic():
            enqueue_then_fail()
    assert list(Job.objects.values_list("pk", flat=True)) == [kept.pk]


@pytest.mark.django_db
@pytest.mark.parametrize("priority", [7, -7])
@pytest.mark.parametrize(
    "options",
    [{}, {"idempotency_key": "k"}, {"idempotency_key": "k", "unique_for": 60, "delay": 5}],
    ids=["plain", "keyed", "unique for a time"],
)
def test_the_returned_job_is_the_row_that_was_written(
    priority: int, options: dict[str, Any]
) -> None:
    headers = {"trace": "%s %(payload)s 'a' \\ \" é"}
    request = add.using(priority=priority, headers=headers, max_attempts=9, **options)
    enqueued = request.enqueue(1, second=2)
    stored = Job.objects.get(pk=enqueued.pk)
    for field in Job._meta.concrete_fields:
        assert getattr(stored, field.attname) == getattr(enqueued, field.attname), field.name
    assert not enqueued.deduplicated


@pytest.mark.django_db
def test_the_returned_job_is_an_instance_as_a_query_makes_it() -> None:
    made: list[Job] = []

    def receive(instance: Job, **keywords: object) -> None:
        made.append(instance)

    post_init.connect(receive, sender=Job)
    try:
        enqueued = noop.enqueue()
    finally:
        post_init.disconnect(receive, sender=Job)
    assert made == [enqueued]
    stored = Job.objects.get(pk=enqueued.pk)
    for name, value in vars(stored._state).items():
        assert getattr(enqueued._state, name) == value, name
    assert vars(enqueued).keys() == vars(stored).keys()
    enqueued.refresh_from_db()
    assert not enqueued.get_deferred_fields()


@given(at=st.datetimes(datetime(1971, 1, 1), datetime(2240, 1, 1), timezones=st.just(UTC)))
def test_epoch_seconds_keep_a_time_to_the_microsecond(at: datetime) -> None:
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    assert datetime.fromtimestamp(microseconds / 1_000_000, UTC) == at


@pytest.mark.django_db
def test_a_job_without_delay_is_ready_and_ranked() -> None:
    enqueued = noop.using(priority=10).enqueue()
    assert enqueued.status == "ready"
    assert enqueued.rank == pytest.approx(enqueued.available_at.timestamp() - 600, abs=1e-3)


@pytest.mark.django_db
def test_a_delay_schedules_the_job_on_the_databases_clock() -> None:
    enqueued = noop.using(delay=90).enqueue()
    assert enqueued.status == "scheduled"
    assert (enqueued.available_at - enqueued.created_at).total_seconds() == pytest.approx(90)


@pytest.mark.django_db
def test_a_due_time_in_the_past_is_ready_at_once() -> None:
    past = timezone.now() - timedelta(hours=1)
    enqueued = noop.using(run_at=past).enqueue()
    assert enqueued.status == "ready"
    assert enqueued.available_at == past


@pytest.mark.django_db
def test_a_delay_counts_from_the_statement_not_the_transaction() -> None:
    run_sql("SELECT pg_sleep(0.05)")
    ((begun,),) = run_sql("SELECT now()")
    assert noop.using(delay=0).enqueue().created_at > begun


@pytest.mark.django_db
def test_an_enqueue_with_a_live_key_returns_its_job() -> None:
    first = add.using(idempotency_key="k").enqueue(1)
    second = add.using(idempotency_key="k").enqueue(2)
    assert second.deduplicated
    assert second.pk == first.pk
    assert second.payload == {"first": 1}


@pytest.mark.django_db
def test_the_same_key_in_another_queue_is_another_job() -> None:
    first = noop.using(idempotency_key="k").enqueue()
    second = noop.using(idempotency_key="k", queue="bulk").enqueue()
    assert second.pk != first.pk
    assert not second.deduplicated


@pytest.mark.django_db
def test_a_running_job_holds_its_key_and_a_finished_one_does_not() -> None:
    held = enqueue_and_claim(idempotency_key="k")
    running = noop.using(idempotency_key="k").enqueue()
    assert running.pk == held.id
    assert running.status == "running"
    settle_one(held, Succeeded())
    assert noop.using(idempotency_key="k").enqueue().pk != held.id


@pytest.mark.django_db(transaction=True)
def test_twenty_threads_with_one_key_make_one_job_and_all_get_it() -> None:
    jobs = in_threads(20, lambda number: add.using(idempotency_key="k").enqueue(number))
    assert len({job.pk for job in jobs}) == 1
    assert sum(not job.deduplicated for job in jobs) == 1
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_key_requested_by_many_threads_never_has_two_live_jobs() -> None:
    worker = register_worker()

    def ask_or_settle(number: int) -> None:
        for _ in range(5):
            noop.using(idempotency_key="k").enqueue()
            for held in claim_ready(worker):
                settle_one(held, Succeeded() if number % 2 else failure(final=True))

    in_threads(10, ask_or_settle)
    assert Job.objects.live().filter(idempotency_key="k").count() <= 1
    assert Job.objects.count() >= 1


@pytest.mark.django_db
def test_many_jobs_are_written_in_order_without_keys() -> None:
    ids = enqueue_many("app.add", [{"first": number} for number in range(20)])
    assert ids == sorted(ids)
    stored = Job.objects.order_by("pk").values_list("payload", flat=True)
    assert list(stored) == [{"first": number} for number in range(20)]


@pytest.mark.django_db
def test_duplicate_keys_return_the_id_of_the_live_job() -> None:
    holder = add.using(idempotency_key="held").enqueue(0)
    keys = ["held", None, "new", None, "new"]
    ids = enqueue_many("app.add", [{"first": n} for n in range(5)], idempotency_keys=keys)
    assert ids[0] == holder.pk
    assert ids[2] == ids[4]
    assert len(set(ids)) == 4
    for id_, first in zip(ids[1:4], (1, 2, 3), strict=True):
        assert Job.objects.get(pk=id_).payload == {"first": first}


@pytest.mark.django_db
def test_keys_and_payloads_of_any_characters_are_stored_as_they_are() -> None:
    keys = [
        "NULL",
        "null",
        '"',
        "\\",
        "{}",
        "a,b",
        " ",
        "\t\n",
        "é",
        '\\"',
        "%s",
        "%(key)s",
        "'",
        None,
    ]
    payloads = [{"first": key} for key in keys]
    ids = enqueue_many("app.add", payloads, idempotency_keys=keys)
    stored = Job.objects.filter(pk__in=ids).order_by("pk")
    assert [(job.idempotency_key, job.payload) for job in stored] == list(
        zip(keys, payloads, strict=True)
    )


@pytest.mark.django_db
@pytest.mark.parametrize("held", [[], ["key-7"], ["key-7", "key-8"]])
@pytest.mark.parametrize("twice", [[], ["key-9"]])
def test_a_large_batch_makes_the_jobs_whose_keys_are_free(
    held: list[str], twice: list[str]
) -> None:
    """By COPY if all are, and otherwise by INSERT."""
    holders = {key: add.using(idempotency_key=key).enqueue(1).pk for key in held}
    keys: list[str | None] = [*(f"key-{number}" for number in range(300)), *twice, None]
    payloads = [{"first": number} for number in range(len(keys))]
    ids = enqueue_many("app.add", payloads, idempotency_keys=keys)
    assert {key: ids[keys.index(key)] for key in held} == holders
    made = dict(Job.objects.exclude(pk__in=holders.values()).values_list("pk", "idempotency_key"))
    assert Counter(made.values()) == Counter({*keys} - {*held})
    assert all(made[id_] == key for id_, key in zip(ids, keys, strict=True) if key not in held)
    assert Job.objects.get(pk=ids[299]).payload["first"] == 299


@pytest.mark.django_db(transaction=True)
def test_a_key_that_is_taken_during_a_copy_costs_the_callers_transaction_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [f"key-{number}" for number in range(200)]

    def taken_meanwhile(*args: Any, **options: Any) -> list[int]:
        def take(_: int) -> int:
            return add.using(idempotency_key="key-100").enqueue(1).pk

        holders.extend(in_threads(1, take))
        return copy_in(*args, **options)

    holders: list[int] = []
    monkeypatch.setattr(enqueueing, "copy_in", taken_meanwhile)
    with transaction.atomic():
        first = noop.enqueue()
        ids = enqueue_many("app.add", [{"first": 1}] * 200, idempotency_keys=keys)
    assert [ids[100]] == holders
    assert Job.objects.filter(pk=first.pk).exists()
    assert Job.objects.count() == 201


@pytest.mark.django_db
def test_the_keys_of_a_dict_come_in_the_order_that_the_docs_name() -> None:
    """Shorter ones first, then as text; in payloads and in results."""
    keys = {"zeta": 1, "alpha": 2, "b": {"yy": 1, "x": 2, "aa": 3}}
    settle_one(enqueue_and_claim(add, keys), Succeeded(result=json.dumps(keys)))
    job = Job.objects.get()
    for stored in (job.payload["first"], job.result):
        assert [*stored] == ["b", "zeta", "alpha"]
        assert [*stored["b"]] == ["x", "aa", "yy"]


@pytest.mark.django_db(transaction=True)
def test_earlier_batches_of_a_list_are_written_if_a_later_payload_is_refused() -> None:
    payloads = [{"first": number} for number in range(BATCH)] + [{"first": {1}}]
    keys = [f"key-{number}" for number in range(BATCH + 1)]
    with pytest.raises(PayloadError, match=rf"payload\[{BATCH}\]\.first"):
        add.enqueue_many(payloads, idempotency_keys=keys)
    assert Job.objects.count() == BATCH


LOOKS = {*range(0, BATCH, 100), *range(BATCH - 2, BATCH + 2)}
"""Jobs at which a function looks into the database: often, and at the seam of two batches."""


@pytest.mark.django_db(transaction=True)
def test_payloads_may_be_read_from_the_same_database() -> None:
    noop.enqueue()

    def read() -> Iterator[dict[str, int]]:
        for number in range(BATCH + 2):
            others = Job.objects.filter(pk=0).count() if number in LOOKS else 0
            yield {"first": number + others}

    assert len(add.enqueue_many(read())) == BATCH + 2


@pytest.mark.django_db(transaction=True)
def test_a_generator_may_change_the_payload_that_it_gave() -> None:
    def same() -> Iterator[dict[str, Any]]:
        payload: dict[str, Any] = {"first": 0}
        for number in range(BATCH + 2):
            payload["first"] = number
            yield payload

    ids = add.enqueue_many(same())
    found = Job.objects.filter(pk__in=ids[-2:]).order_by("pk")
    assert [job.payload["first"] for job in found] == [BATCH, BATCH + 1]


@pytest.mark.django_db(transaction=True)
def test_a_function_that_finds_the_tenant_may_use_the_database() -> None:
    def tenant_of(payload: dict[str, Any]) -> str:
        looks = payload["first"] in LOOKS
        return f"tenant-{Job.objects.filter(pk=0).count() if looks else 0}"

    billed = replace(add, tenant=tenant_of)
    ids = billed.enqueue_many([{"first": number} for number in range(BATCH + 2)])
    assert Job.objects.filter(tenant="tenant-0").count() == len(ids) == BATCH + 2


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_tables")
def test_held_keys_are_looked_up_by_the_index_of_live_keys() -> None:
    add.enqueue_many({"first": number} for number in range(20_000))
    run_sql("ANALYZE django_jobs_job_live")
    asked = "{" + ",".join(f"key-{number}" for number in range(5_000)) + "}"
    plan = explain(enqueueing.HELD, {"queue": "default", "keys": asked})
    assert "django_jobs_live_key" in {node.get("Index Name") for node in plan}
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert "key-4999" not in str(plan), "the planner looked at each key"


@pytest.mark.django_db
def test_the_queues_weight_goes_into_the_rank() -> None:
    urgent = noop.using(queue="strict", priority=1).enqueue()
    plain = noop.using(queue="strict").enqueue()
    assert plain.rank - urgent.rank > 0.9e8
    assert Queue.objects.get(name="strict").priority_weight == 1e8


@pytest.mark.django_db
def test_an_enqueue_is_one_statement_once_the_queue_is_known(
    django_assert_num_queries: object,
) -> None:
    noop.enqueue()
    with django_assert_num_queries(1):  # type: ignore[operator]
        noop.enqueue()


@pytest.mark.django_db(transaction=True)
def test_a_commit_wakes_and_a_rollback_does_not() -> None:
    with listening() as notes:
        with pytest.raises(Abandoned), transaction.atomic():
            enqueue_then_fail()
        assert notes() == []
        noop.using(queue="bulk").enqueue()
        assert notes() == ["bulk"]


@pytest.mark.django_db(transaction=True)
def test_batches_written_before_a_refusal_notify_their_workers() -> None:
    payloads = [{}] * BATCH + [{"unknown": 1}]
    with listening() as notes:
        with pytest.raises(PayloadError, match=r"payload\[5000\]"):
            enqueue_many("app.noop", payloads)
        assert notes() == ["default"]
    notifying._last_sent.clear()
    with listening() as notes:
        with transaction.atomic():
            with pytest.raises(PayloadError):
                enqueue_many("app.noop", payloads)
            assert notes() == []
        assert notes() == ["default"]


@pytest.mark.django_db
@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("of", [list, iter])
def test_large_payloads_are_written_in_several_statements_in_order(
    monkeypatch: pytest.MonkeyPatch, of: Callable[[Any], Any], keys: bool
) -> None:
    monkeypatch.setattr(bulk_insert, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(bulk_insert, "FIRST", 2)
    notes = [f"{number} {'x' * 3_000}" for number in range(30)]
    given = [f"k{number}" for number in range(30)] if keys else None
    with CaptureQueriesContext(connection) as made:
        ids = write_effect.enqueue_many(
            of([{"note": note} for note in notes]), idempotency_keys=given
        )
    rows = Job.objects.in_bulk(ids)
    assert [rows[id_].payload["note"] for id_ in ids] == notes
    inserts = [one["sql"] for one in made if "nextval" in one["sql"]]
    assert len(inserts) == (1 if keys else 30 // 4 + 1), "a transaction with keys is read whole"
