"""A request replaces the job that holds its key, unless that has started."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobs import Backoff, EnqueueError, JobType, cancel, enqueue, enqueue_many
from django_jobs.domain.gates import parse
from django_jobs.domain.outcomes import Snoozed, Succeeded
from django_jobs.lifecycle import progress, replacing
from django_jobs.lifecycle.job_columns import GATE_COLUMNS
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import quarantines
from django_jobs.lifecycle.progress import ProgressReport, report
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows import spawning
from django_jobs.models import Job, Progress, Receipt, Run, UniqueKey
from django_jobs.signals import job_enqueued
from tests.app.gate_jobs import charge_account
from tests.app.jobs import add, noop
from tests.factories import (
    analyze,
    claim_ready,
    declared,
    enqueue_and_claim,
    explain,
    failure,
    heard,
    in_threads,
    listening,
    make_dead,
    register_worker,
    run_again,
    run_sql,
    settle_one,
)
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = pytest.mark.django_db

last = add.using(idempotency_key="k", on_duplicate="replace")
hourly = last.using(unique_for=3600)


def test_a_pending_job_is_replaced_by_the_last_request() -> None:
    first = last.using(priority=1, headers={"trace": "a"}).enqueue(1)
    assert not first.deduplicated
    second = last.using(priority=7, headers={"trace": "b"}, max_attempts=9).enqueue(2, second=3)
    assert (second.pk, second.deduplicated) == (first.pk, True)
    assert second.payload == {"first": 2, "second": 3}
    assert (second.priority, second.headers, second.max_attempts) == (7, {"trace": "b"}, 9)
    assert second.rank == pytest.approx(second.available_at.timestamp() - 7 * 60, abs=1e-3)
    assert second.created_at == first.created_at
    stored = Job.objects.get()
    for field in Job._meta.concrete_fields:
        assert getattr(stored, field.attname) == getattr(second, field.attname), field.name


def test_the_first_request_returns_the_row_that_was_written() -> None:
    for request in (last.using(priority=7), hourly.using(idempotency_key="other")):
        enqueued = request.enqueue(1)
        stored = Job.objects.get(pk=enqueued.pk)
        for field in Job._meta.concrete_fields:
            assert getattr(stored, field.attname) == getattr(enqueued, field.attname), field.name


def test_each_request_of_a_debounce_moves_the_due_time_out() -> None:
    slow = last.using(delay=30)
    first = slow.enqueue(1)
    assert first.status == "scheduled"
    second = slow.enqueue(2)
    assert second.pk == first.pk
    assert second.available_at > first.available_at
    assert Job.objects.get().payload == {"first": 2}


def test_the_status_follows_the_new_due_time() -> None:
    assert last.using(delay=30).enqueue(1).status == "scheduled"
    assert last.enqueue(2).status == "ready"
    assert last.using(delay=30).enqueue(3).status == "scheduled"
    assert claim_ready(register_worker()) == []


def test_the_job_takes_all_that_follows_from_its_new_type() -> None:
    def handler(first: int) -> None: ...

    options: dict[str, Any] = {"version": 3, "timeout": 9, "max_age": 60, "max_crashes": 7}
    first = last.enqueue(1)
    with declared(handler, name="app.other", backoff=Backoff.fixed(5), **options) as other:
        second = other.using(idempotency_key="k", on_duplicate="replace").enqueue(2)
    assert (second.pk, second.job_type, second.payload_version) == (first.pk, "app.other", 3)
    assert (second.timeout, second.max_crashes) == (9, 7)
    assert second.backoff_rule == Backoff.fixed(5)
    assert second.expires_at is not None
    assert second.expires_at - second.available_at == timedelta(minutes=1)
    third = last.enqueue(3)
    assert (third.job_type, third.timeout, third.backoff, third.expires_at) == (
        *("app.add", None, None, None),
    )


def test_gates_are_those_of_the_last_request() -> None:
    keyed = charge_account.using(idempotency_key="k", on_duplicate="replace")
    first = keyed.enqueue(7)
    assert first.status == "blocked"
    second = keyed.enqueue(8)
    assert (second.pk, second.status, second.concurrency_key) == (first.pk, "blocked", "account:8")
    third = last.enqueue(1)
    assert (third.pk, third.status, third.gates, third.concurrency_key) == (
        *(first.pk, "ready", None, None),
    )


def test_a_job_that_passed_its_gates_stays_ready_unless_they_change() -> None:
    keyed = charge_account.using(idempotency_key="k", on_duplicate="replace")
    keyed.enqueue(7)
    run_sql("UPDATE django_jobs_job SET status = 'ready'")
    assert keyed.enqueue(7, amount=2).status == "ready"
    assert keyed.enqueue(8).status == "blocked"
    run_sql("UPDATE django_jobs_job SET status = 'ready'")
    assert keyed.using(delay=30).enqueue(8).status == "scheduled"


def test_a_job_that_waits_for_another_still_does() -> None:
    first = last.enqueue(1)
    run_sql("UPDATE django_jobs_job SET status = 'waiting'")
    second = last.using(delay=30).enqueue(2)
    assert (second.pk, second.status, second.payload) == (first.pk, "waiting", {"first": 2})


def test_a_job_that_waits_for_a_signal_begins_from_the_start() -> None:
    first = last.enqueue(1)
    run_sql(
        "UPDATE django_jobs_job SET status = 'waiting', awaits = 'approval',"
        " signals = '{\"payment\": 7}'"
    )
    second = last.using(delay=30).enqueue(2)
    assert (second.pk, second.status) == (first.pk, "scheduled")
    assert (second.awaits, second.signals) == (None, None)


def test_a_quarantined_job_is_blocked_again_like_a_new_one() -> None:
    first = last.enqueue(1)
    quarantines.quarantine("app.add")
    quarantines.block("default")
    assert Job.objects.get().status == "blocked"
    assert last.enqueue(2).pk == first.pk
    assert claim_ready(register_worker()) == []
    quarantines.block("default")
    assert Job.objects.get().reason == "quarantined"


@pytest.mark.parametrize("outcome", [failure(), Snoozed(seconds=60.0)])
def test_a_job_that_is_to_be_tried_again_begins_from_the_start(outcome: Any) -> None:
    held = enqueue_and_claim(add, 1, idempotency_key="k", on_duplicate="replace")
    report([ProgressReport(job=held, checkpoint='{"row": 5}')])
    progress.store(held, "charge", "1")
    other = enqueue_and_claim(noop)
    progress.store(other, "charge", "1")
    settle_one(held, outcome)
    replaced = last.enqueue(2)
    assert (replaced.pk, replaced.status, replaced.payload) == (held.id, "ready", {"first": 2})
    assert (replaced.failures, replaced.crashes, replaced.attempt) == (0, 0, 1)
    assert not Progress.objects.exists()
    assert Receipt.objects.get().job_id == other.id
    assert Run.objects.filter(job=held.id).count() == 1


def test_a_replaced_job_still_says_who_replayed_it() -> None:
    dead = make_dead(add, 1, idempotency_key="k", headers={"trace": "a"})
    assert job_operations.replay([dead.pk], check=lambda _: None, by="olga").done == [dead.pk]
    replaced = last.using(headers={"trace": "b"}).enqueue(2)
    assert (replaced.pk, replaced.replays, replaced.headers["trace"]) == (dead.pk, 1, "b")
    assert [replay["by"] for replay in replaced.headers["replays"]] == ["olga"]


def test_the_key_of_a_running_job_goes_to_a_new_one() -> None:
    worker = register_worker()
    held = enqueue_and_claim(add, 1, idempotency_key="k", worker=worker)
    second = last.enqueue(2)
    assert second.pk != held.id
    assert (second.status, second.deduplicated) == ("ready", False)
    running = Job.objects.get(pk=held.id)
    assert (running.status, running.idempotency_key, running.payload) == (
        *("running", None, {"first": 1}),
    )
    assert last.enqueue(3).pk == second.pk
    settle_one(held, Succeeded())
    assert Job.objects.get(pk=held.id).status == "succeeded"
    assert [claimed.payload for claimed in claim_ready(worker)] == ['{"first": 3}']


def test_a_running_job_that_lost_its_key_is_retried_without_it() -> None:
    worker = register_worker()
    held = enqueue_and_claim(add, 1, idempotency_key="k", worker=worker)
    second = last.using(delay=60).enqueue(2)
    settle_one(held, failure())
    assert Job.objects.get(pk=held.id).status == "scheduled"
    run_again(held.id, worker, failure(final=True))
    dead = Job.objects.get(pk=held.id)
    assert (dead.status, dead.idempotency_key) == ("dead", None)
    assert job_operations.replay([held.id], check=lambda _: None).done == [held.id]
    assert Job.objects.holding_key("default", "k").get().pk == second.pk


def test_a_job_that_has_ended_is_not_replaced() -> None:
    dead = make_dead(add, 1, idempotency_key="k")
    second = last.enqueue(2)
    assert second.pk != dead.pk
    assert not second.deduplicated
    refused = job_operations.replay([dead.pk], check=lambda _: None).refused
    assert refused == {dead.pk: f"job {second.pk} (ready) holds its idempotency key 'k'"}


def test_within_its_time_a_pending_job_is_replaced_and_an_ended_one_returned() -> None:
    first = hourly.enqueue(1)
    until_then = UniqueKey.objects.get().expires_at
    second = hourly.enqueue(2)
    assert (second.pk, second.payload) == (first.pk, {"first": 2})
    (held,) = claim_ready(register_worker())
    settle_one(held, Succeeded())
    third = hourly.enqueue(3)
    assert (third.pk, third.status, third.payload) == (first.pk, "succeeded", {"first": 2})
    assert third.deduplicated
    assert Job.objects.count() == 1
    assert UniqueKey.objects.get().expires_at == until_then
    Job.objects.all().delete()
    assert (hourly.enqueue(4).pk, Job.objects.count()) == (first.pk, 0)
    run_sql("UPDATE django_jobs_uniquekey SET expires_at = now()")
    assert hourly.enqueue(5).pk != first.pk


def test_within_its_time_the_last_request_runs_after_a_running_job() -> None:
    held = enqueue_and_claim(add, 1, idempotency_key="k", unique_for=60)
    second = hourly.enqueue(2)
    assert second.pk != held.id
    assert UniqueKey.objects.get().job_id == second.pk
    settle_one(held, Succeeded())
    assert hourly.enqueue(3).pk == second.pk


@pytest.mark.parametrize("gated", [False, True])
def test_within_its_time_a_job_in_the_queue_of_its_retry_comes_back(gated: bool) -> None:
    request: Any = hourly
    if gated:
        request = hourly.using(tenant="acme", concurrency_key="one")
    first = request.enqueue(1)
    moved = replace(failure(), queue="bulk", priority=7)
    run_sql("UPDATE django_jobs_job SET status = 'ready'")
    (held,) = claim_ready(register_worker())
    settle_one(held, moved)
    assert Job.objects.get().queue == "bulk"
    second = request.enqueue(2)
    stored = Job.objects.get()
    assert (second.pk, second.deduplicated, stored.payload) == (first.pk, True, {"first": 2})
    assert (stored.queue, stored.priority, stored.failures) == ("default", 0, 0)
    assert stored.status == ("blocked" if gated else "ready")
    if gated:
        assert parse(str(stored.gates)).queue == "default"
    assert UniqueKey.objects.get().job_id == first.pk


def test_within_its_time_the_key_of_a_job_that_runs_in_another_queue_goes_to_a_new_one() -> None:
    held = enqueue_and_claim(add, 1, idempotency_key="k", unique_for=60)
    settle_one(held, replace(failure(), queue="bulk"))
    job_operations.run_now([held.id])
    (again,) = claim_ready(held.worker, "bulk")
    second = hourly.enqueue(2)
    assert (second.pk != held.id, second.status) == (True, "ready")
    assert UniqueKey.objects.get().job_id == second.pk
    settle_one(again, Succeeded())
    assert hourly.enqueue(3).pk == second.pk


def test_within_its_time_a_step_in_the_queue_of_its_retry_is_cancelled() -> None:
    held = enqueue_and_claim(add, 1, idempotency_key="k", unique_for=60)
    then = NewStep(name="then", new=noop.request(), payload="{}", others=1)
    spawning.add_next(held.id, "first", then)
    settle_one(held, replace(failure(), queue="bulk"))
    second = hourly.enqueue(2)
    assert (second.pk != held.id, second.queue) == (True, "default")
    assert Job.objects.get(pk=held.id).status == "cancelled"


@pytest.mark.parametrize("retried", [False, True])
def test_within_its_time_a_job_without_its_key_leaves_it_to_a_new_one(retried: bool) -> None:
    """A request without a time has taken it and has ended."""
    held = enqueue_and_claim(add, 1, idempotency_key="k", unique_for=60)
    between = last.enqueue(2)
    cancel(between.pk)
    if retried:
        settle_one(held, failure())
    third = hourly.enqueue(3)
    assert third.pk not in (held.id, between.pk)
    assert UniqueKey.objects.get().job_id == third.pk
    assert Job.objects.get(pk=held.id).payload == {"first": 1}


def test_a_live_job_without_a_time_is_replaced_and_gets_none() -> None:
    first = last.enqueue(1)
    assert hourly.enqueue(2).pk == first.pk
    assert not UniqueKey.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_request_replaces_nothing() -> None:
    first = last.enqueue(1)
    with transaction.atomic():
        last.using(delay=30).enqueue(2)
        transaction.set_rollback(True)
    stored = Job.objects.get()
    assert (stored.pk, stored.payload, stored.status) == (first.pk, {"first": 1}, "ready")
    (held,) = claim_ready(register_worker())
    with transaction.atomic():
        assert last.enqueue(3).pk != held.id
        transaction.set_rollback(True)
    assert Job.objects.get().idempotency_key == "k"


@pytest.mark.django_db(transaction=True)
def test_a_replaced_job_wakes_its_workers_and_sends_no_signal() -> None:
    last.using(delay=30).enqueue(1)
    with listening() as notes, heard(job_enqueued) as sent:
        last.enqueue(2)
        assert notes() == ["default"]
    assert sent == []


WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


def while_in_progress(
    first: Callable[[], object],
    *,
    commits: bool = True,
    request: JobType[..., Any] = last,
) -> Job:
    """The answer to a request that waits until the transaction of ``first`` ends."""
    begun = threading.Event()

    def act(number: int) -> Any:
        if number == 1:
            assert begun.wait(PATIENCE)
            return request.enqueue(2)
        with transaction.atomic():
            first()
            begun.set()
            until(lambda: run_sql(WAITING) == [(1,)])
            transaction.set_rollback(not commits)
        return None

    _, answer = in_threads(2, act)
    assert isinstance(answer, Job)
    return answer


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("commits", [True, False])
def test_a_job_that_is_claimed_meanwhile_is_replaced_only_if_the_claim_fails(
    commits: bool,
) -> None:
    worker, first = register_worker(), last.enqueue(1)
    answer = while_in_progress(lambda: claim_ready(worker), commits=commits)
    assert (answer.pk != first.pk) == commits
    assert (answer.payload, answer.status) == ({"first": 2}, "ready")
    assert Job.objects.live().filter(idempotency_key="k").get().pk == answer.pk


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_cancelled_meanwhile_is_followed_by_a_new_one() -> None:
    first = last.enqueue(1)
    answer = while_in_progress(lambda: cancel(first.pk))
    assert answer.pk != first.pk
    assert Job.objects.get(pk=first.pk).status == "cancelled"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outcome", [Succeeded(), failure()])
def test_a_job_that_is_settled_meanwhile_is_replaced_if_it_is_tried_again(outcome: Any) -> None:
    held = enqueue_and_claim(add, 1, idempotency_key="k")
    answer = while_in_progress(lambda: settle_one(held, outcome))
    assert (answer.pk == held.id) == (not isinstance(outcome, Succeeded))
    assert (answer.payload, answer.status) == ({"first": 2}, "ready")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"unique_for": 60}])
def test_a_new_job_is_unique_for_its_time_if_the_one_before_ended_meanwhile(
    options: dict[str, Any],
) -> None:
    first = last.using(**options).enqueue(1)
    answer = while_in_progress(lambda: cancel(first.pk), request=hourly)
    assert answer.pk != first.pk
    kept = UniqueKey.objects.get()
    assert kept.job_id == answer.pk
    assert kept.expires_at - answer.created_at >= timedelta(hours=1)


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_claimed_meanwhile_gives_its_key_and_time_to_a_new_one() -> None:
    worker, first = register_worker(), hourly.enqueue(1)
    answer = while_in_progress(lambda: claim_ready(worker), request=hourly)
    assert answer.pk != first.pk
    assert UniqueKey.objects.get().job_id == answer.pk


@pytest.mark.django_db(transaction=True)
def test_a_job_without_a_time_that_was_enqueued_meanwhile_is_replaced_and_gets_none() -> None:
    answer = while_in_progress(lambda: last.enqueue(1), request=hourly)
    assert (answer.deduplicated, answer.payload) == (True, {"first": 2})
    assert Job.objects.get().pk == answer.pk
    assert not UniqueKey.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_request_in_a_transaction_survives_a_cancel_of_the_job_meanwhile() -> None:
    begun = threading.Event()
    first = last.enqueue(1)

    def act(number: int) -> Any:
        with transaction.atomic():
            if number == 1:
                other = noop.enqueue()
                assert begun.wait(PATIENCE)
                return last.enqueue(2), other
            cancel(first.pk)
            begun.set()
            until(lambda: run_sql(WAITING) == [(1,)])

    _, (answer, other) = in_threads(2, act)
    assert answer.pk != first.pk
    assert Job.objects.live().count() == 2
    assert Job.objects.filter(pk=other.pk).exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"unique_for": 3600}])
def test_many_threads_that_debounce_leave_one_job(options: dict[str, Any]) -> None:
    slow = last.using(delay=30, **options)
    jobs = in_threads(20, lambda number: slow.enqueue(number))
    assert len({job.pk for job in jobs}) == 1
    assert sum(not job.deduplicated for job in jobs) == 1
    assert Job.objects.get().payload["first"] in range(20)


@pytest.mark.django_db(transaction=True)
def test_the_last_request_runs_whenever_those_before_start_and_end() -> None:
    worker, requests = register_worker(), 60
    done = threading.Event()
    ran: list[str] = []

    def act(number: int) -> None:
        if number == 0:
            for request in range(requests):
                last.enqueue(request)
            done.set()
            return
        while not done.is_set():
            for held in claim_ready(worker, limit=1):
                ran.append(held.payload)
                outcome = Succeeded() if random.random() < 0.5 else failure()
                settle_one(held, outcome)

    in_threads(4, act)
    job_operations.run_now(list(Job.objects.values_list("pk", flat=True)))
    ran += [held.payload for held in claim_ready(worker)]
    assert f'{{"first": {requests - 1}}}' in ran
    assert Job.objects.live().filter(idempotency_key="k").count() <= 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"unique_for": 60}])
def test_a_project_may_bind_parameters_on_the_server(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """PostgreSQL then deduces their types."""
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    try:
        for job_type in (add, charge_account):
            unique = job_type.using(idempotency_key=job_type.name, **options)
            first = unique.enqueue(1)
            assert unique.enqueue(1).pk == first.pk
            assert unique.using(on_duplicate="replace").enqueue(2).pk == first.pk
            assert unique.using(on_duplicate="replace", queue="bulk").enqueue(2).pk != first.pk
        (held,) = claim_ready(register_worker())
        assert last.using(idempotency_key=add.name, **options).enqueue(3).pk != held.id
        many = add.using(**options)
        assert many.enqueue_many([{"first": 1}] * 2, idempotency_keys=[add.name, "x"])[0] != held.id
    finally:
        connection.close()


def test_the_numbers_of_statements(django_assert_num_queries: Any) -> None:
    noop.enqueue()
    for request in (last, hourly.using(idempotency_key="other")):
        with django_assert_num_queries(1):
            request.enqueue(1)
        with django_assert_num_queries(2):
            request.enqueue(2)
    claim_ready(register_worker())
    with django_assert_num_queries(5):  # two of them are of a savepoint
        last.enqueue(3)


def test_replacing_is_for_single_requests_with_a_key() -> None:
    assert enqueue("app.noop", idempotency_key="k", on_duplicate="replace").status == "ready"
    with pytest.raises(EnqueueError, match=r"app.noop: on_duplicate needs an idempotency key"):
        noop.using(on_duplicate="replace").enqueue()
    with pytest.raises(EnqueueError, match="enqueue_many returns the ids of duplicates; for on_du"):
        enqueue_many("app.noop", [{}], idempotency_keys=["k"], on_duplicate="replace")


@pytest.mark.usefixtures("fresh_tables")
def test_keys_and_jobs_are_found_by_their_indexes() -> None:
    add.enqueue_many({"first": number} for number in range(20_000))
    keys = [f"key-{number}" for number in range(5_000)]
    enqueue_many("app.noop", [{}] * 5_000, idempotency_keys=keys, unique_for=60)
    analyze("django_jobs_job", "django_jobs_uniquekey")
    parameters = {
        **hourly.request().parameters,
        **dict.fromkeys(GATE_COLUMNS),
        **{"payload": "{}", "key": "key-7", "id": 1},
    }
    for statement in (
        replacing.REPLACE,
        replacing.REPLACE_UNIQUE,
        replacing.TAKE_FROM_RUNNING,
        replacing.CANCEL_STEP,
        replacing.RESERVE_FOR,
    ):
        plan = explain(statement, parameters)
        read = {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
        assert not read & {"django_jobs_job_live", "django_jobs_uniquekey"}, statement
