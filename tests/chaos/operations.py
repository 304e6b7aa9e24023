"""What operations on all jobs that match have done, by a ledger that triggers write.

A chunk is one transaction, and so the jobs that changed in it are those by which its counts grew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import operation_plan
from .operation_plan import COMPLETE, KINDS, PLAN, SICK_PLAN
from .partitions import Database

QUEUE = "second"
"""Of the jobs of operations: it has a limit, so that some wait until they are changed."""
PRIORITY = 7
FIRST = 2
"""Jobs of the first wave of a plan."""

MAKE = """
CREATE TABLE accounts.counted_chunk (
    txid xid8 DEFAULT pg_current_xact_id(), at timestamptz DEFAULT clock_timestamp(),
    operation bigint, done bigint, "left" bigint
);
CREATE FUNCTION accounts.note_chunk() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO accounts.counted_chunk (operation, done, "left")
    VALUES (NEW.id, NEW.done - OLD.done, NEW."left" - OLD."left");
    RETURN NULL;
END $$;
CREATE TRIGGER note_chunk AFTER UPDATE ON django_jobs_bulkoperation
    FOR EACH ROW EXECUTE FUNCTION accounts.note_chunk();

CREATE TABLE accounts.changed_job (
    txid xid8 DEFAULT pg_current_xact_id(), at timestamptz DEFAULT clock_timestamp(), job bigint
);
CREATE FUNCTION accounts.note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO accounts.changed_job (job) VALUES (OLD.id);
    RETURN NULL;
END $$;
CREATE TRIGGER note_change AFTER UPDATE OR DELETE ON django_jobs_job_live FOR EACH ROW
    WHEN (OLD.job_type LIKE 'chaos.bulk%') EXECUTE FUNCTION accounts.note_change();
"""

CHUNKS = """
SELECT chunk.operation, sum(chunk.done)::int, sum(chunk."left")::int,
    extract(epoch FROM max(chunk.at))::float8,
    ARRAY(SELECT DISTINCT job FROM accounts.changed_job AS changed
          WHERE changed.txid = chunk.txid ORDER BY job)
FROM accounts.counted_chunk AS chunk
GROUP BY chunk.operation, chunk.txid ORDER BY min(chunk.at)
"""

OPERATIONS = """
SELECT id, reason, status, why, done, "left", succeeded, failed, cancelled, reasons::text
FROM django_jobs_bulkoperation ORDER BY id
"""

# The last change of a job that has succeeded is that which took it out of reach.
JOBS = """
SELECT job.tags[1], job.id, job.status, job.priority, job.replays,
    job.cancel_requested_at IS NOT NULL, job.reason,
    (SELECT coalesce(extract(epoch FROM max(changed.at))::float8, 0)
     FROM accounts.changed_job AS changed WHERE changed.job = job.id),
    (SELECT count(*) FROM django_jobs_run AS run WHERE run.job_id = job.id
     AND run.outcome IN ('failed', 'timed_out', 'lost')
     AND run.attempt > (job.headers #>> '{replays,0,after_attempt}')::int)
FROM django_jobs_job AS job WHERE job.job_type LIKE 'chaos.bulk%' ORDER BY job.id
"""


@dataclass(frozen=True, slots=True)
class Operated:
    """A job that an operation was meant for, in the end."""

    id: int
    status: str
    priority: int
    replays: int
    cancel_requested: bool
    reason: str
    changed_at: float
    failures: int
    """Runs that came to nothing after the first replay."""


@dataclass(slots=True)
class Operation:
    """One row, with what its chunks have counted and changed."""

    id: int
    name: str
    status: str
    why: str
    done: int
    left: int
    succeeded: int
    failed: int
    cancelled: int
    reasons: Mapping[str, Any]
    chunks: list[tuple[int, int, float, list[int]]]

    @property
    def changed(self) -> list[int]:
        """The jobs that changed in a chunk, one that changed in two twice."""
        return [job for *_, jobs in self.chunks for job in jobs]

    @property
    def with_counts(self) -> int:
        """How many chunks counted a job."""
        return sum(done + left > 0 for done, left, *_ in self.chunks)

    @property
    def last_at(self) -> float:
        """When its last chunk was over."""
        return max((at for *_, at, _ in self.chunks), default=0.0)


def make(database: Database) -> None:
    """Before anything is enqueued, and after the partitions are made."""
    database.execute(MAKE)


def problems(database: Database, directory: Path) -> Iterator[tuple[int, str]]:
    """Operations that have not ended, that counted other jobs than they changed, that changed one
    twice, or left one without a reason; and jobs that are not as the operation said."""
    asked, operations = _asked(directory), _operations(database)
    names = [operation.name for operation in operations]
    if sorted(names) != sorted(asked):
        yield 23, f"{sorted(asked)} were asked for, and there are {sorted(names)}"
    jobs = _jobs(database)
    for operation in operations:
        for problem in _of(operation, asked.get(operation.name, ""), jobs[operation.name]):
            yield 23, f"{operation.name} ({asked.get(operation.name)}) {problem}"
    for kind in KINDS:
        if kind not in asked.values():
            yield 23, f"no {kind} was asked for, so nothing was tried"
    if all(operation.with_counts < 2 for operation in operations):
        yield 23, "no operation had two chunks, so nothing was tried"


def _of(operation: Operation, kind: str, jobs: Collection[Operated]) -> Iterator[str]:
    expected = "stopped" if kind == SICK_PLAN else "completed"
    if operation.status != expected:
        yield f"is {operation.status} and not {expected}: {operation.why}"
    for done, left, _, changed in operation.chunks:
        if done != len(changed):
            yield f"counted {done} done and {left} left in a chunk that changed {changed}"
    changed, ids = operation.changed, {job.id for job in jobs}
    if twice := sorted({job for job in changed if changed.count(job) > 1}):
        yield f"changed {twice} twice"
    if set(changed) - ids:
        yield f"changed {sorted(set(changed) - ids)}, which do not match"
    if operation.done != len(changed):
        yield f"counts {operation.done} done and changed {len(changed)}"
    yield from _left(operation, kind, [job for job in jobs if job.id not in changed])
    for job in jobs:
        if not _is_as_expected(kind, job, job.id in changed):
            yield f"{'changed' if job.id in changed else 'left'} {job}"
    if kind == PLAN:
        known = operation.succeeded + operation.failed + operation.cancelled
        failed = sum(job.failures > 0 for job in jobs)
        if known != operation.done or operation.failed > failed:
            yield (
                f"counts {operation.succeeded} that went well and {operation.failed} that failed"
                f" again of {operation.done}, and there are {failed} with a failure"
            )
    if kind == SICK_PLAN and not operation.done == operation.failed == FIRST:
        yield f"replayed {operation.done} jobs that fail again, of which {operation.failed} did"


def _left(operation: Operation, kind: str, untouched: Collection[Operated]) -> Iterator[str]:
    """What is wrong with the jobs that it did not change. Each was left for a reason, or had ended
    before a chunk came to it."""
    counts = [entry["count"] for entry in operation.reasons.values()]
    named = {job for entry in operation.reasons.values() for job in entry["jobs"]}
    if sum(counts) != operation.left:
        yield f"counts {operation.left} left, and {sum(counts)} by their reasons"
    if wrong := named - {job.id for job in untouched}:
        yield f"names {sorted(wrong)} as left, which it changed"
    if kind in COMPLETE and untouched:
        yield f"left {[job.id for job in untouched]}, which nobody else had: {operation.reasons}"
    if kind == SICK_PLAN:
        return  # it was stopped before them
    unnamed = operation.left - len(named)
    missed = [
        job.id for job in untouched
        if job.id not in named
        and not (job.status == "succeeded" and job.changed_at < operation.last_at)
    ]  # fmt: skip
    if len(missed) > unnamed:
        yield f"left {missed} without a reason"


def _is_as_expected(kind: str, job: Operated, changed: bool) -> bool:
    match kind:
        case operation_plan.CANCEL:
            if changed:  # one that ran was asked to stop, and may have been about to end
                return job.cancel_requested and job.status in ("cancelled", "succeeded")
            return not job.cancel_requested and job.status == "succeeded"
        case operation_plan.REPRIORITIZE:
            return job.status == "succeeded" and job.priority == (PRIORITY if changed else 0)
        case operation_plan.DISMISS:
            return job.status == "cancelled" and job.replays == 0
        case operation_plan.SICK_PLAN:
            return job.status == "dead" and job.replays == int(changed)
        case operation_plan.RUN_NOW:
            return job.status == "succeeded" and job.replays == 0
        case _:
            return job.status == "succeeded" and job.replays == 1


def _asked(directory: Path) -> dict[str, str]:
    written = json.loads((directory / "keys-workflows.json").read_text())
    asked: dict[str, str] = written["operations"]
    return asked


def _operations(database: Database) -> list[Operation]:
    chunks = defaultdict(list)
    for operation, *chunk in database.fetch(CHUNKS):
        chunks[operation].append(tuple(chunk))
    return [
        Operation(*columns, json.loads(reasons), chunks[columns[0]])
        for *columns, reasons in database.fetch(OPERATIONS)
    ]


def _jobs(database: Database) -> dict[str, list[Operated]]:
    jobs = defaultdict(list)
    for name, *columns in database.fetch(JOBS):
        jobs[name].append(Operated(*columns))
    return jobs


def counted(database: Database) -> dict[str, int]:
    """What operations have done."""
    operations = _operations(database)
    return {
        "operations": len(operations),
        "chunks of operations": sum(operation.with_counts for operation in operations),
        "jobs that operations changed": sum(operation.done for operation in operations),
        "jobs that operations left": sum(operation.left for operation in operations),
    }
