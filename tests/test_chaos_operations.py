"""The account of the chaos test about operations finds what was changed twice, skipped or
miscounted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.claiming import ClaimedJob
from django_jobs.lifecycle.operations import bulk
from django_jobs.maintenance import bulk_operations
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.models import BulkOperation, Job
from tests.chaos import bulk_operator, operation_plan, operations
from tests.chaos.bulk_operator import BulkOperator
from tests.chaos.operation_plan import (
    CANCEL,
    CHUNK,
    DISMISS,
    ENQUEUE,
    KINDS,
    PLAN,
    REPLAY,
    REPRIORITIZE,
    RESUME,
    RUN_NOW,
    SICK_PLAN,
    START,
    STOP,
    Event,
)
from tests.factories import claim_ready, declared, failure, register_worker, run_sql, settle_one
from tests.test_chaos_partitions import Here

SEED, JOBS = 1, CHUNK + 2
KNOWN = {"chaos.bulk_work": 1, "chaos.bulk_dies": 1}


def bulk_work(seconds: float) -> None: ...


def bulk_dies(seconds: float, again: bool) -> None: ...


@pytest.fixture
def _ledger(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small chunks, each in a transaction, and the handlers of the storm."""
    monkeypatch.setattr(bulk_operations, "CHUNK", CHUNK)
    monkeypatch.setattr(bulk_operations, "REPLAYED", CHUNK)
    run_sql("CREATE SCHEMA accounts")
    operations.make(Here())
    with ExitStack() as stack:
        for handler in bulk_work, bulk_dies:
            stack.enter_context(declared(handler, name=f"chaos.{handler.__name__}"))
        yield
    run_sql("DROP SCHEMA accounts CASCADE")


def queue_of(kind: str) -> str:
    """One for itself, so that the test can claim its jobs."""
    return "bulk" if kind == REPRIORITIZE else "default"


class Storm:
    """The operations of a storm, one of each kind, without the faults."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.operator = BulkOperator()
        self.worker = register_worker(job_types=KNOWN)
        self.held: list[ClaimedJob] = []

    def happen(self) -> None:
        for event in operation_plan.events(SEED, len(KINDS), 42.0):
            self.patch.setattr(bulk_operator, "QUEUE", queue_of(event.kind))
            while not self.operator.act(replace(event, jobs=JOBS)):
                self.go_on()
            if event.verb == ENQUEUE and event.kind in (CANCEL, REPRIORITIZE):
                self.claim_two(event)
            if event.verb in (START, RESUME):
                self.go_on()
        while BulkOperation.objects.filter(finished_at=None).exists():
            self.go_on()
        for held in self.held:
            settle_one(held, Succeeded())
        run_sql("UPDATE django_jobs_job_live SET status = 'ready' WHERE status = 'scheduled'")
        while self.work():
            pass

    def claim_two(self, event: Event) -> None:
        """One succeeds at once, and one runs until the end."""
        first, second = claim_ready(self.worker, queue_of(event.kind), 2, job_types=KNOWN)
        settle_one(first, Succeeded())
        self.held.append(second)

    def go_on(self) -> None:
        """The next chunk, and what it made ready."""
        due = (
            "UPDATE django_jobs_bulkoperation SET next_at = '2026-01-01' WHERE finished_at IS NULL"
        )
        run_sql(due)
        run_chunk()
        run_sql("UPDATE django_jobs_bulkoperation SET progress = progress - 'sent_at'")
        self.work(job_type="chaos.bulk_dies")

    def work(self, job_type: str = "") -> bool:
        known = {job_type: 1} if job_type else KNOWN
        queues = {queue_of(kind) for kind in KINDS}
        ready = [one for name in queues for one in claim_ready(self.worker, name, job_types=known)]
        for held in ready:
            job = Job.objects.get(pk=held.id)
            dies = job.job_type == "chaos.bulk_dies" and job.replays <= job.payload["again"]
            settle_one(held, failure(final=True) if dies else Succeeded())
        return bool(ready)


@pytest.fixture
def storm(_ledger: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    over = Storm(monkeypatch)
    over.happen()
    write(tmp_path, over.operator.asked)
    return tmp_path


def write(directory: Path, asked: dict[str, str]) -> None:
    (directory / "keys-workflows.json").write_text(json.dumps({"operations": asked}))


def found(directory: Path) -> list[str]:
    problems = list(operations.problems(Here(), directory))
    assert {number for number, _ in problems} <= {23}
    return [text for _, text in problems]


def test_operations_that_did_what_they_counted_balance(storm: Path) -> None:
    assert found(storm) == []
    counts = operations.counted(Here())
    assert counts["operations"] == len(KINDS)
    assert counts["jobs that operations left"] == 1, "the one that ran could get no priority"
    assert counts["chunks of operations"] > len(KINDS)


def operation(kind: str) -> BulkOperation:
    return BulkOperation.objects.get(reason=f"operation-{KINDS.index(kind)}")


@contextmanager
def changed(sql: str, *parameters: object) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a statement that is undone afterwards."""
    with transaction.atomic():
        yield run_sql(sql, parameters)
        transaction.set_rollback(True)


def test_a_job_that_changed_in_a_chunk_and_was_not_counted_fails_the_account(storm: Path) -> None:
    """As if the counts had been written in another transaction, which was lost."""
    fewer = """UPDATE accounts.counted_chunk SET done = done - 1 WHERE ctid = (
        SELECT ctid FROM accounts.counted_chunk WHERE operation = %s AND done > 0 LIMIT 1)"""
    for kind in KINDS:
        with changed(fewer, operation(kind).pk):
            (problem,) = found(storm)
        assert "in a chunk that changed" in problem, kind


def test_a_job_that_changed_twice_fails_the_account(storm: Path) -> None:
    again = """WITH chunk AS (
            INSERT INTO accounts.counted_chunk (txid, operation, done, "left")
            VALUES ('1', %s, 1, 0) RETURNING operation
        ) INSERT INTO accounts.changed_job (txid, job)
        SELECT '1', min(job) FROM accounts.changed_job WHERE txid IN (
            SELECT txid FROM accounts.counted_chunk
            WHERE operation = (SELECT operation FROM chunk) AND done > 0)"""
    for kind in KINDS:
        with changed(again, operation(kind).pk):
            assert any("twice" in problem for problem in found(storm)), kind


def test_a_job_that_was_skipped_without_a_reason_fails_the_account(storm: Path) -> None:
    """One that matched all the time, and succeeded after the last chunk."""
    skipped = """WITH other AS (
            INSERT INTO django_jobs_job SELECT (jsonb_populate_record(one, jsonb_build_object(
                'id', one.id + 1000, 'status', 'succeeded', 'priority', 0, 'replays', 0,
                'cancel_requested_at', NULL, 'idempotency_key', NULL))).*
            FROM django_jobs_job AS one WHERE tags @> ARRAY[%s::text] LIMIT 1 RETURNING id
        ) INSERT INTO accounts.changed_job (job) SELECT id FROM other RETURNING job"""
    for kind in (*KINDS[:2], *KINDS[3:]):
        with changed(skipped, operation(kind).reason) as ((job,),):
            assert any(f"left [{job}]" in problem for problem in found(storm)), kind


def test_counts_that_are_not_those_of_the_rows_fail_the_account(storm: Path) -> None:
    for kind in REPRIORITIZE, PLAN:
        for fault, problem in {
            '"left" = "left" + 1': "left, and",
            "done = done + 1": "done and changed",
            "status = 'failed'": "is failed and not",
            "status = 'running'": "is running and not",
        }.items():
            one = f"UPDATE django_jobs_bulkoperation SET {fault} WHERE id = %s"
            with changed(one, operation(kind).pk):
                assert any(problem in text for text in found(storm)), (kind, fault)


def test_outcomes_that_are_not_those_of_the_runs_fail_the_account(storm: Path) -> None:
    better = """UPDATE django_jobs_bulkoperation
        SET succeeded = succeeded + %s, failed = failed - %s WHERE id = %s"""
    for kind, number in {SICK_PLAN: 1, PLAN: -1}.items():
        with changed(better, number, number, operation(kind).pk):
            assert len(found(storm)) == 1, kind


def test_jobs_that_are_not_as_the_operation_left_them_fail_the_account(storm: Path) -> None:
    for kind, change in {
        CANCEL: "cancel_requested_at = NULL",
        REPRIORITIZE: "priority = 3",
        RUN_NOW: "replays = 1",
        REPLAY: "replays = 2",
        PLAN: "replays = 0",
        SICK_PLAN: "replays = 2",
        DISMISS: "status = 'succeeded'",
    }.items():
        other = f"UPDATE django_jobs_job SET {change} WHERE tags @> ARRAY[%s::text]"
        with changed(other, operation(kind).reason):
            assert found(storm), kind


def test_operations_that_nobody_asked_for_or_that_are_gone_fail_the_account(storm: Path) -> None:
    asked = {f"operation-{number}": kind for number, kind in enumerate(KINDS)}
    write(storm, {**asked, "operation-99": CANCEL})
    assert any("operation-99" in problem for problem in found(storm))
    write(storm, asked)
    bulk.start("cancel", {"tag": "other"}, reason="other")
    assert any("other" in problem for problem in found(storm))


@pytest.mark.usefixtures("_ledger")
def test_a_storm_without_operations_fails_the_account(tmp_path: Path) -> None:
    write(tmp_path, {})
    assert sum("nothing was tried" in problem for problem in found(tmp_path)) == len(KINDS) + 1


@pytest.mark.parametrize(
    ("seed", "number", "seconds"), [(1, 14, 42.0), (2, 14, 42.0), (3, 7, 25.0)]
)
def test_a_storm_as_short_as_that_of_ci_has_operations_of_all_kinds(
    seed: int, number: int, seconds: float
) -> None:
    events = operation_plan.events(seed, number, seconds)
    assert events == operation_plan.events(seed, number, seconds)
    assert [event.at for event in events] == sorted(event.at for event in events)
    started = [event for event in events if event.verb == START]
    assert {event.kind for event in started} == set(KINDS)
    assert sorted(event.number for event in started) == list(range(number))
    assert {event.verb for event in events} == {ENQUEUE, START, STOP, RESUME}
    assert all(2 * CHUNK <= event.jobs <= 6 * CHUNK for event in events)
    assert max(event.at for event in started) < seconds
