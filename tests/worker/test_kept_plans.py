"""What a worker sends all the time is planned once in a session that no pooler shares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.backends.postgresql.base import ServerBindingCursor

from django_jobs import chain
from django_jobs.domain.admission import FairShares
from django_jobs.domain.gates import LoneGate
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import claiming, opening, promoting, settling
from django_jobs.lifecycle.gates import admission
from django_jobs.lifecycle.gates.arrivals import admit_arrivals
from django_jobs.models import Job, Resource, database
from django_jobs.worker.connections import PREPARED_AFTER
from tests.app.gate_jobs import charge_account, refund_payment
from tests.app.jobs import noop
from tests.factories import claim_ready, register_worker, run_sql
from tests.worker.attempts import in_own_session

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 20
LEFT = ROUNDS - PREPARED_AFTER
CUSTOM = 5
"""Plans for the values at hand that PostgreSQL makes before it compares one for all values."""

KEPT = "SELECT name, statement, generic_plans, custom_plans FROM pg_prepared_statements"


@pytest.fixture
def worker(fresh_tables: None) -> int:
    return register_worker()


def end(worker: int) -> None:
    endings = [settling.Ending(job, Succeeded()) for job in claim_ready(worker)]
    settling.settle(endings, hand_over=settling.HandOver())


def work_through(worker: int, jobs: int = 1) -> None:
    for _ in range(ROUNDS):
        promoting.peek(["default"])
        noop.enqueue_many([{}] * jobs)
        end(worker)


@pytest.mark.parametrize("jobs", [1, 2, settling.FEW])
def test_polls_claims_and_settles_are_planned_once(worker: int, jobs: int) -> None:
    def work() -> dict[str, tuple[int, int]]:
        work_through(worker, jobs)
        return {re.split(r"\W+", text)[2]: plans for _, text, *plans in database.fetch(KEPT, {})}

    kept = in_own_session(work)
    assert kept.pop("ARRAY") == [LEFT, 0]  # the poll
    assert kept == {one: [LEFT - CUSTOM, CUSTOM] for one in ("picked", "clock")}
    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded"}


ENQUEUE: dict[LoneGate, Callable[[], object]] = {
    LoneGate.KEY: lambda: charge_account.enqueue(1),
    LoneGate.RESOURCE: lambda: refund_payment.enqueue(1),
    LoneGate.TENANT: lambda: noop.using(tenant="acme").enqueue(),
}


@pytest.mark.parametrize("gate", ENQUEUE)
def test_what_admits_an_arrival_is_planned_once(worker: int, gate: LoneGate) -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)

    def work() -> list[tuple[str, int]]:
        for _ in range(ROUNDS):
            admit_one(gate, worker)
        return [(str(text).split()[0], custom) for _, text, _, custom in database.fetch(KEPT, {})]

    kept = in_own_session(work)
    assert ("SELECT", 0) in kept  # the turn, which has no parameter
    assert [custom for _, custom in kept if custom > CUSTOM] == []


def admit_one(gate: LoneGate, worker: int) -> None:
    ENQUEUE[gate]()
    assert admit_arrivals(gate, {"default": 5}).queues == {"default"}
    end(worker)


OF_A_LINE = {admission.LINES, admission.ADMIT}
OF_A_CHAIN = {opening.COUNT_DOWN_MET, opening.LOCK_RUNS, opening.COUNT_ENDS}


def admit_line(worker: int) -> None:
    charge_account.enqueue(1)
    assert admission.admit({"default": 5}, FairShares()).queues == {"default"}
    end(worker)


def step_through(worker: int) -> None:
    run = chain(noop.step(), noop.step()).start()
    end(worker)
    end(worker)
    run.refresh_from_db()
    assert run.status == "succeeded"


@pytest.mark.parametrize("many", [admit_line, step_through])
def test_admissions_and_chains_are_planned_once(worker: int, many: Callable[[int], None]) -> None:
    def work() -> list[int]:
        for _ in range(ROUNDS):
            many(worker)
        return [custom for _, _, _, custom in database.fetch(KEPT, {})]

    kept = in_own_session(work)
    assert len(kept) >= 3
    assert max(kept) <= CUSTOM


JOBS_READ = r"Scan (?:using \w+ )?on django_jobs_job_live"
BY_THE_ORDER_OF_IDS = (
    r" Index Scan using django_jobs_job_pkey.*\n *Index Cond: \(+id = "
    r"|Bitmap Index Scan on django_jobs_job_pkey.*\n"
    r" *Index Cond: \(+id = (?:ANY \(ARRAY\[s_\d+\.id\]\)|\$\d+\))"
)


@pytest.mark.parametrize("rows", [0, 1, 30, 100, 300, 3_000])
def test_a_plan_of_a_small_table_reads_by_an_index(worker: int, rows: int) -> None:
    """Kept, it has to do for a table that has grown by a million rows since."""
    noop.using(queue="index").enqueue_many([{}] * rows)
    Resource.objects.create(name="stripe", max_concurrency=1)
    for _ in range(min(rows, 30)):
        chain(noop.using(queue="index").step(), noop.step()).start()
    run_sql("ANALYZE django_jobs_job_live, django_jobs_dependency")

    def work() -> Iterator[str]:
        work_through(worker)
        work_through(worker, 2)
        for gate in ENQUEUE:
            for _ in range(ROUNDS):
                admit_one(gate, worker)
        for _ in range(ROUNDS):
            admit_line(worker)
            step_through(worker)
        run_sql("SET plan_cache_mode = force_generic_plan")
        for name, _, parameters in database.fetch(
            "SELECT name, statement, cardinality(parameter_types) FROM pg_prepared_statements", {}
        ):
            given = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
            yield "\n".join(
                line for (line,) in database.fetch(f'EXPLAIN EXECUTE "{name}"{given}', None)
            )

    plans = in_own_session(lambda: list(work()))
    assert len(plans) == 5 + (1 + len(ENQUEUE)) + len(OF_A_LINE) + len(OF_A_CHAIN)
    for plan in plans:
        assert "Index" in plan or "django_jobs_job" not in plan, plan
        assert not re.search("Seq Scan on django_jobs_(job|run|workflowrun|dependency)", plan), plan
        assert "Sort Key: django_jobs_job_live" not in plan, plan
        assert "using django_jobs_dead" not in plan, plan  # it would read all of them
        assert "JIT" not in plan
        by_id = re.findall(r"using django_jobs_job_pkey.*\n *Index Cond: \(+id = ", plan)
        assert len(by_id) == plan.count("using django_jobs_job_pkey"), plan
        if "CTE settled" in plan:
            # What it locks comes in the order of ids: by their index, or by a bitmap for one ending
            # after the other, where the table has many pages for its rows. The heirs of a slot are
            # locked before they are read once more: for them any scan will do.
            locks = re.split(r"^ *(?:CTE written|->  CTE Scan on updated)", plan, flags=re.M)[0]
            assert len(re.findall(JOBS_READ, locks)) == 1, plan
            assert len(re.findall(BY_THE_ORDER_OF_IDS, locks)) == 1, plan


@pytest.mark.parametrize("limit", [None, 100])
def test_a_migration_that_changes_a_column_stops_no_claim(worker: int, limit: int | None) -> None:
    """PostgreSQL refuses a plan whose result has another type now."""
    run_sql("UPDATE django_jobs_queue SET max_concurrency = %s WHERE name = 'default'", [limit])

    def claim() -> int:
        noop.enqueue()
        types = {noop.name: 1}
        options = {"worker": worker, "job_types": types, "limit": 1, "limited": limit is not None}
        return len(claiming.claim("default", **options))

    def work() -> list[int]:
        claimed = [claim() for _ in range(ROUNDS)]
        ((length,),) = database.fetch(LENGTH, {})
        database.execute(RESIZE.format(length + 1), None)
        try:
            return [*claimed, claim(), claim()]
        finally:
            database.execute(RESIZE.format(length), None)

    assert in_own_session(work) == [1] * (ROUNDS + 2)


LENGTH = """
SELECT character_maximum_length FROM information_schema.columns
WHERE table_name = 'django_jobs_job' AND column_name = 'idempotency_key'
"""
RESIZE = "ALTER TABLE django_jobs_job ALTER COLUMN idempotency_key TYPE varchar({})"


def test_where_the_server_binds_all_statements_no_plan_is_kept(
    worker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)

    def work() -> list[Any]:
        assert isinstance(connection.cursor().cursor, ServerBindingCursor)
        work_through(worker)
        return database.fetch(KEPT, {})

    assert in_own_session(work) == []


def test_other_connections_keep_no_plan(worker: int) -> None:
    work_through(worker)
    assert database.fetch(KEPT, {}) == []
    with transaction.atomic():
        work_through(worker)
    assert connection.connection.prepare_threshold is None
