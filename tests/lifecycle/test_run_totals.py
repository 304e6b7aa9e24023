"""Each run is counted once: with transactions that are open, that roll back, and that race."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction

from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Lost, Outcome, Released, Succeeded
from django_jobs.lifecycle import progress, run_totals
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.run_totals import (
    BATCH_END,
    FOLD,
    MARGIN,
    MOST_ERRORS,
    fold,
    look,
    writers,
)
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.maintenance.tasks import Folding
from django_jobs.models import (
    ErrorTotal,
    Queue,
    Resource,
    ResourceTotal,
    Run,
    RunTotal,
    Tenant,
    TenantTotal,
)
from tests.app.jobs import add, noop
from tests.factories import (
    another_connection,
    claim_ready,
    enqueue_and_claim,
    explain,
    failure,
    fold_runs,
    in_threads,
    leaves,
    register_worker,
    rows_read,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db(transaction=True)

A_RUN = """
INSERT INTO django_jobs_run (job_id, attempt, outcome, available_at, claimed_at, started_at,
    finished_at, error_type, error_message, traceback, fingerprint)
SELECT %s, 2, 'failed', now(), now(), now(), now(), '', '', '', ''
FROM generate_series(1, 1)
"""


@contextmanager
def open_transaction() -> Iterator[Any]:
    """A cursor of another session, in a transaction."""
    with another_connection() as other:
        other.ensure_connection()
        other.set_autocommit(False)
        with other.cursor() as cursor:
            yield cursor
        other.rollback()


def counted() -> dict[str, int]:
    """The runs in the totals since the beginning, by outcome."""
    return dict(RunTotal.objects.filter(period=0).values_list("outcome", "runs"))


def a_run() -> int:
    """One succeeded run; returns the id of its job."""
    held = enqueue_and_claim(noop)
    settle_one(held, Succeeded())
    return held.id


def errors() -> dict[tuple[str, str], int]:
    """The attempts in the totals of errors, by job type and class of the error."""
    rows = ErrorTotal.objects.values_list("job_type", "error_type", "runs")
    return {(job_type, error): runs for job_type, error, runs in rows}


def test_a_run_with_a_lower_id_that_commits_later_is_counted_once() -> None:
    job = a_run()
    folding = Folding(patience=0)
    with open_transaction() as late:
        late.execute(A_RUN, [job])
        a_run()
        fold_runs(folding)
        assert counted() == {}
        a_run()
        late.connection.commit()
    fold_runs(folding)
    assert counted() == {"succeeded": 2, "failed": 1}
    fold_runs(folding)
    assert counted() == {"succeeded": 3, "failed": 1}
    fold_runs(Folding())
    assert sum(counted().values()) == Run.objects.count() == 4


def test_those_who_begin_to_write_later_hold_nothing_up() -> None:
    job = a_run()
    folding = Folding(patience=0)
    with open_transaction() as first:
        first.execute(A_RUN, [job])
        fold_runs(folding)
        with open_transaction() as second:
            second.execute(A_RUN.replace("2,", "3,"), [job])
            first.connection.commit()
            fold_runs(folding)
            assert counted() == {"succeeded": 1, "failed": 1}
            second.connection.commit()
    fold_runs(folding)
    assert counted() == {"succeeded": 1, "failed": 2}


def test_a_run_that_is_rolled_back_is_not_counted() -> None:
    job = a_run()
    with open_transaction() as cursor:
        cursor.execute(A_RUN, [job])
        cursor.connection.rollback()
    fold_runs()
    assert counted() == {"succeeded": 1}


def test_a_writer_is_seen_before_it_draws_an_id() -> None:
    a_run()
    with open_transaction() as cursor:
        cursor.execute("LOCK TABLE django_jobs_run IN ROW EXCLUSIVE MODE")
        (number,) = writers()
        assert writers([number]) == [number]
        assert writers(["0/0"]) == []
    assert writers() == []


def test_a_fold_that_is_rolled_back_counts_nothing_and_loses_nothing() -> None:
    a_run()
    with transaction.atomic():
        fold_runs()
        assert counted() == {"succeeded": 1}
        transaction.set_rollback(True)
    assert counted() == {}
    fold_runs()
    assert counted() == {"succeeded": 1}


def test_of_two_who_fold_the_same_runs_one_counts_them() -> None:
    a_run()
    look()  # makes the watermark
    seen = look()
    assert fold(seen, seen.last, seen.now)
    assert not fold(seen, seen.last, seen.now)
    assert counted() == {"succeeded": 1}


def test_who_finds_the_watermark_locked_waits_for_nothing() -> None:
    a_run()
    look()
    with open_transaction() as cursor:
        cursor.execute("SELECT 1 FROM django_jobs_runwatermark FOR UPDATE")
        assert Folding().run_once() == 0
    assert counted() == {}
    fold_runs()
    assert counted() == {"succeeded": 1}


def test_workers_that_fold_while_others_settle_count_each_run_once() -> None:
    noop.enqueue_many([{}] * 45)
    held = claim_ready(register_worker())

    def work(number: int) -> None:
        for place in range(15):
            if number < 3:
                settle_one(held[number * 15 + place], Succeeded())
            else:
                run_sql("UPDATE django_jobs_runwatermark SET reached_at = 'epoch'")
                Folding().run_once()

    in_threads(5, work)
    fold_runs()
    assert counted() == {"succeeded": 45}
    for period in (60, 3600):
        totals = RunTotal.objects.filter(period=period)
        assert sum(totals.values_list("runs", flat=True)) == 45


def test_batches_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.maintenance.tasks.BATCH", 2)
    for _ in range(5):
        a_run()
    fold_runs()
    assert counted() == {"succeeded": 5}
    waiting = RunTotal.objects.get(period=0).waiting_buckets
    assert sum(waiting) == 5


def test_ids_that_no_run_has_are_skipped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.maintenance.tasks.BATCH", 2)
    for ahead in (0, 10, 1_000_000):
        run_sql(
            "SELECT setval('django_jobs_run_id_seq', nextval('django_jobs_run_id_seq') + %s)",
            [ahead],
        )
        for _ in range(3):
            a_run()
    folding = Folding()
    assert [folding.run_once() > 0 for _ in range(6)] == [True] * 5 + [False]
    assert counted() == {"succeeded": 9}


def test_old_runs_are_counted_when_totals_are_turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.maintenance.tasks.BATCH", 1)
    for days in (30, 20, 10):
        a_run()
        run_sql(
            "UPDATE django_jobs_run SET finished_at = finished_at - make_interval(days => %s)"
            " WHERE id = (SELECT max(id) FROM django_jobs_run)",
            [days],
        )
    fold_runs()
    assert counted() == {"succeeded": 3}


def test_a_run_whose_job_was_deleted_is_counted_without_a_name() -> None:
    job = a_run()
    run_sql("DELETE FROM django_jobs_job WHERE id = %s", [job])
    fold_runs()
    (total,) = RunTotal.objects.filter(period=0)
    assert (total.queue, total.job_type, total.runs) == ("", "", 1)


def test_a_sequence_that_began_again_is_followed() -> None:
    a_run()
    a_run()
    fold_runs()
    run_sql("TRUNCATE django_jobs_run")
    run_sql("ALTER SEQUENCE django_jobs_run_id_seq RESTART")
    fold_runs()
    a_run()
    fold_runs()
    assert counted() == {"succeeded": 3}


@pytest.mark.parametrize("outcome", [Released(reason="a deploy"), Lost(reason="SIGKILL")])
def test_an_attempt_after_an_interruption_has_waited_since_that(outcome: Outcome) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=30)
    try:
        first = enqueue_and_claim(noop)
        now = time.monotonic()
        run_sql(
            "UPDATE django_jobs_job SET available_at = available_at - interval '10 min',"
            " claimed_at = claimed_at - interval '10 min'"
        )
        first = first._replace(available_at=first.available_at - 600)
        settle_one(first, outcome, started=now - 599, finished=now)
        (second,) = claim_ready(register_worker())
        now = time.monotonic()
        settle_one(second, Succeeded(), started=now, finished=now)
        fold_runs()
    finally:
        Queue.objects.filter(name="default").update(slo_seconds=None)
    totals = RunTotal.objects.filter(period=0)
    assert sum(totals.values_list("waiting_seconds", flat=True)) < 300
    assert [(one.slo_runs, one.slo_met) for one in totals] == [(1, 1)] * 2


@pytest.mark.parametrize(
    ("of_queue", "of_tenant", "queue_counts", "tenant_counts"),
    [
        (None, None, (0, 0), (0, 0)),
        (30, None, (1, 1), (1, 1)),
        (30, 1, (1, 1), (1, 0)),
        (1, 30, (1, 0), (1, 1)),
        (None, 30, (0, 0), (1, 1)),
    ],
)
def test_a_tenant_has_its_own_objective_or_that_of_the_queue(
    of_queue: float | None,
    of_tenant: float | None,
    queue_counts: tuple[int, int],
    tenant_counts: tuple[int, int],
) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=of_queue)
    Tenant.objects.create(name="acme", slo_seconds=of_tenant)
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET tenant = 'acme'")
    (job,) = claim_ready(register_worker())
    now = time.monotonic()
    settle_one(job, Succeeded(), started=now, finished=now)
    run_sql("UPDATE django_jobs_run SET available_at = started_at - interval '10 s'")
    fold_runs()
    for model, counts in ((RunTotal, queue_counts), (TenantTotal, tenant_counts)):
        totals = model._default_manager.filter(period=0).values_list("slo_runs", "slo_met")
        assert list(totals) == [counts]


def test_runs_are_counted_after_the_clock_was_set_back() -> None:
    a_run()
    fold_runs()
    run_sql("UPDATE django_jobs_runwatermark SET reached_at = now() + interval '3 days'")
    a_run()
    assert Folding().run_once() > 0
    assert counted() == {"succeeded": 2}
    ((is_past,),) = run_sql("SELECT reached_at <= now() FROM django_jobs_runwatermark")
    assert is_past


def test_totals_from_before_the_clock_was_set_back_are_deleted() -> None:
    settle_one(enqueue_and_claim(noop), failure())
    fold_runs()
    later = "SET began_at = began_at + interval '1 day'"
    run_sql(f"UPDATE django_jobs_errortotal {later}")
    run_sql(f"UPDATE django_jobs_runtotal {later} WHERE period > 0")
    a_run()
    fold_runs()
    run_totals.prune_run_totals()
    left = set(RunTotal.objects.values_list("period", "outcome"))
    assert left == {(0, "failed"), *((period, "succeeded") for period in (0, 60, 3600))}
    assert ErrorTotal.objects.count() == 0


def test_no_new_run_costs_one_statement(django_assert_num_queries: Any) -> None:
    a_run()
    folding = Folding()
    fold_runs(folding)
    with django_assert_num_queries(1):
        assert folding.run_once() == 0
    a_run()
    with django_assert_num_queries(1):  # another worker has just counted
        assert Folding().run_once() == 0


def test_old_minutes_and_hours_are_deleted() -> None:
    a_run()
    fold_runs()
    begun = "UPDATE django_jobs_runtotal SET began_at = now() - %s::interval WHERE period = %s"
    for ages, left in ((("2 h", "7 d"), {0, 60, 3600}), (("4 h", "9 d"), {0})):
        for age, period in zip(ages, (60, 3600), strict=True):
            run_sql(begun, [age, period])
        run_totals.prune_run_totals()
        assert {total.period for total in RunTotal.objects.all()} == left


def test_a_fold_reads_its_runs_by_their_ids_and_no_old_partition() -> None:
    jobs = noop.enqueue_many([{}] * 3_000)
    run_sql(
        "INSERT INTO django_jobs_run (job_id, attempt, outcome, available_at, claimed_at,"
        " started_at, finished_at, error_type, error_message, traceback, fingerprint)"
        " SELECT id, 1, 'failed', now(), now(), now(), now(), '', '', '', ''"
        " FROM unnest(%s::bigint[]) AS id",
        [jobs],
    )
    for table, default in (
        ("django_jobs_job_history", "django_jobs_job_history_default"),
        ("django_jobs_run", "django_jobs_run_default"),
    ):
        run_sql(f"CREATE TABLE {table}_old (LIKE {default} INCLUDING ALL)")
        run_sql(
            f"ALTER TABLE {table} ATTACH PARTITION {table}_old"
            " FOR VALUES FROM ('2020-01-01 00:00Z') TO ('2020-01-02 00:00Z')"
        )
    try:
        look()
        for leaf in (*leaves("django_jobs_run"), "django_jobs_job_live"):
            run_sql(f"ANALYZE {leaf}")
        seen = look()
        run_sql("UPDATE django_jobs_runwatermark SET run_id = %s", [seen.last - 50])
        since = seen.now - MARGIN
        nodes = explain(
            FOLD,
            {"after": seen.last - 50, "upto": seen.last, "since": since, "reached": seen.now},
        )
        last_of_batch = explain(
            BATCH_END,
            {"after": seen.last - 2_000, "last": seen.last, "since": since, "batch": 50},
        )
    finally:
        for table in ("django_jobs_job_history", "django_jobs_run"):
            run_sql(f"DROP TABLE {table}_old")
    names = {str(node.get("Relation Name")) for node in nodes}
    assert not [name for name in names if name.endswith("_old")]
    runs = [
        node
        for node in nodes
        if str(node.get("Relation Name")).startswith("django_jobs_run_") and node["Actual Rows"]
    ]
    assert [(node["Node Type"], node["Actual Rows"]) for node in runs] == [("Index Scan", 50)]
    assert max(map(rows_read, last_of_batch)) == 50
    assert not [node for node in last_of_batch if str(node.get("Relation Name")).endswith("_old")]
    jobs_read = [node for node in nodes if node.get("Relation Name") == "django_jobs_job_live"]
    assert [node["Actual Rows"] for node in jobs_read] == [50]
    assert {node["Node Type"] for node in jobs_read} <= {"Index Scan", "Bitmap Heap Scan"}
    (join,) = [node for node in nodes if node.get("Join Type") == "Full"]
    assert join["Node Type"] in ("Hash Join", "Merge Join")


def test_attempts_that_failed_alike_in_a_minute_are_counted_together() -> None:
    for job_type, kind in ((noop, "KeyError"), (noop, "OSError"), (add, "KeyError")):
        for _ in range(2):
            arguments = () if job_type is noop else (1,)
            settle_one(enqueue_and_claim(job_type, *arguments), failure(kind=kind))
    a_run()
    run_sql("UPDATE django_jobs_run SET finished_at = date_trunc('minute', now())")
    fold_runs()
    expected = {
        ("app.noop", "KeyError"): 2,
        ("app.noop", "OSError"): 2,
        ("app.add", "KeyError"): 2,
    }
    assert errors() == expected
    ((began_at, minute),) = run_sql(
        "SELECT DISTINCT began_at, date_trunc('minute', finished_at)"
        " FROM django_jobs_errortotal, django_jobs_run"
    )
    assert began_at == minute
    settle_one(enqueue_and_claim(noop), failure(kind="OSError"))
    run_sql("UPDATE django_jobs_run SET finished_at = %s", [minute])
    fold_runs()
    assert errors() == expected | {("app.noop", "OSError"): 3}


def test_the_errors_of_a_batch_that_are_counted_are_the_most_frequent_ones() -> None:
    job = a_run()
    many = A_RUN.replace("%s, 2", "%s + i, 2").replace("(1, 1)", "(1, 73) AS i")
    run_sql(many.replace("'', '', '', ''", "'Error', '', '', 'f' || least(i, 70)"), [job])
    fold_runs()
    assert ErrorTotal.objects.count() == MOST_ERRORS
    assert ErrorTotal.objects.get(fingerprint="f70").runs == 4


def test_totals_of_errors_are_deleted_after_two_hours() -> None:
    settle_one(enqueue_and_claim(noop), failure())
    fold_runs()
    for age, left in (("1 h 55 min", 1), ("2 h 5 min", 0)):
        run_sql("UPDATE django_jobs_errortotal SET began_at = now() - %s::interval", [age])
        run_totals.prune_run_totals()
        assert ErrorTotal.objects.count() == left


def test_duplicates_that_receipts_prevented_are_counted_when_their_job_has_ended() -> None:
    def prevented() -> int:
        fold_runs()
        return sum(RunTotal.objects.filter(period=0).values_list("prevented", flat=True))

    worker = register_worker()
    first = enqueue_and_claim(noop, worker=worker)
    progress.store(first, "charge", "1")
    progress.store(first, "mail", "2")
    run_again_with = [failure(), failure(final=True), Succeeded()]
    settle_one(first, failure())
    for outcome in run_again_with:
        job_operations.run_now([first.id])
        job_operations.replay([first.id], check=lambda job: None)
        (held,) = claim_ready(worker)
        assert progress.look_up(held, "charge")
        assert progress.look_up(held, "new") is None
        assert prevented() == 0
        settle_one(held, outcome)
    ((in_rows,),) = run_sql("SELECT sum(prevented) FROM django_jobs_receipt")
    assert prevented() == in_rows == 3
    a_run()
    assert prevented() == 3


@pytest.mark.parametrize("due", ["infinity", "-infinity"])
def test_an_infinite_due_time_written_by_hand_counts_as_no_time(due: str) -> None:
    held = enqueue_and_claim(noop)
    run_sql("UPDATE django_jobs_job SET available_at = %s", [due])
    now = time.monotonic()
    settle([Ending(held, Succeeded(), now - 2, now)])
    assert run_sql("SELECT isfinite(available_at) FROM django_jobs_run") == [(False,)]
    fold_runs(Folding())
    total = RunTotal.objects.get(period=0)
    assert (total.runs, total.waiting_seconds) == (1, 0)
    assert total.runtime_seconds == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("at", ["infinity", "-infinity"])
def test_infinite_times_of_runs_written_by_hand_count_as_no_time(at: str) -> None:
    for column in ("available_at", "claimed_at", "started_at"):
        run_sql(A_RUN, [a_run()])
        run_sql(
            f"UPDATE django_jobs_run SET {column} = %s WHERE id = (SELECT max(id) FROM"
            " django_jobs_run)",
            [at],
        )
    fold_runs(Folding())
    total = RunTotal.objects.get(period=0, outcome="failed")
    assert total.runs == sum(total.waiting_buckets) == 3
    assert (total.waiting_seconds, total.start_lag_seconds, total.runtime_seconds) == (0, 0, 0)


@pytest.mark.usefixtures("fresh_tables")
def test_the_receipts_of_retried_jobs_that_ended_are_found_by_their_job() -> None:
    a_run()
    run_sql(
        "INSERT INTO django_jobs_receipt (job_id, key, attempt, answer, made_at, prevented)"
        " SELECT n, 'key', 1, '1', now(), 1 FROM generate_series(1, 20000) AS n"
    )
    run_sql("UPDATE django_jobs_run SET attempt = 2")
    run_sql("UPDATE django_jobs_job SET attempt = 2")
    run_sql("ANALYZE django_jobs_receipt")
    seen = look()
    parameters = {"after": 0, "upto": seen.last, "since": "-infinity", "reached": seen.now}
    (scan,) = (
        node
        for node in explain(FOLD, parameters)
        if node.get("Relation Name") == "django_jobs_receipt"
    )
    assert (scan["Index Name"], scan["Actual Loops"]) == ("django_jobs_receipt_key", 1)
    assert scan["Actual Rows"] <= 1


class Replied(Exception):
    """The reply of a service."""

    def __init__(self, status: int) -> None:
        self.status = status


def test_attempts_are_counted_for_each_resource_that_has_a_row() -> None:
    Resource.objects.bulk_create(Resource(name=name) for name in ("stripe", "ledger"))
    noop.enqueue_many([{}] * 5)
    run_sql("""UPDATE django_jobs_job SET resources = '["stripe", "ledger", "gone"]'""")
    noop.enqueue_many([{}])
    run_sql("UPDATE django_jobs_job SET resources = '7' WHERE resources IS NULL")
    for _ in range(2):
        now = time.monotonic()
        replied = (Failed(error=ErrorReport.of(Replied(status))) for status in (429, 503))
        held = claim_ready(register_worker(), limit=3)
        ended = zip(held, (Succeeded(), *replied), strict=True)
        settle([Ending(job, outcome, now - 2, now) for job, outcome in ended])
        fold_runs(Folding())
    names = ("outcome", "runs", "throttled", "server_errors")
    for resource in ("stripe", "ledger"):
        totals = ResourceTotal.objects.filter(resource=resource)
        assert set(totals.values_list(*names)) == {("succeeded", 2, 0, 0), ("failed", 3, 2, 1)}
        for total in totals:
            assert sum(total.runtime_buckets) == total.runs
            assert total.runtime_seconds == pytest.approx(2 * total.runs, abs=1e-3)
    assert ResourceTotal.objects.count() == 4
    Resource.objects.filter(name="stripe").delete()
    run_totals.prune_run_totals()
    assert [total.resource for total in ResourceTotal.objects.all()] == ["ledger"] * 2


def test_attempts_are_counted_for_each_tenant_that_has_a_row() -> None:
    Tenant.objects.bulk_create(Tenant(name=name) for name in ("acme", "otto"))
    jobs = noop.enqueue_many([{}] * 6)
    for job, tenant in zip(jobs, ("acme", "acme", "otto", "rare", "rare"), strict=False):
        run_sql("UPDATE django_jobs_job SET tenant = %s WHERE id = %s", [tenant, job])
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '1 h'")
    for limit in (4, 2):
        now = time.monotonic()
        held = claim_ready(register_worker(), limit=limit)
        outcomes = (failure(final=True) if job.id == jobs[0] else Succeeded() for job in held)
        settle([Ending(job, one, now - 2, now) for job, one in zip(held, outcomes, strict=True)])
        fold_runs(Folding())
    counted = set(TenantTotal.objects.values_list("period", "tenant", "outcome", "runs"))
    ended = {("acme", "failed", 1), ("acme", "succeeded", 1), ("otto", "succeeded", 1)}
    assert counted == {(period, *one) for period in (0, 3600) for one in ended}
    for total in TenantTotal.objects.all():
        assert sum(total.runtime_buckets) == sum(total.waiting_buckets) == total.runs
        assert total.runtime_seconds == pytest.approx(2, abs=1e-3)
        assert total.waiting_seconds >= 3_598
    begun = "UPDATE django_jobs_tenanttotal SET began_at = %s::timestamptz WHERE period = 3600"
    for at, hours in (("now() - interval '24 h'", 3), ("now() - interval '26 h'", 0)):
        run_sql(begun.replace("%s::timestamptz", at))
        run_totals.prune_run_totals()
        assert TenantTotal.objects.filter(period=3600).count() == hours
    Tenant.objects.filter(name="acme").delete()
    run_totals.prune_run_totals()
    assert [total.tenant for total in TenantTotal.objects.all()] == ["otto"]
