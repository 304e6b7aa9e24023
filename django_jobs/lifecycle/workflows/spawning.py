"""Insert the steps that a running job asks for, batch by batch.

Each batch is one transaction with a receipt, in which the job is still its worker's. Rows are
locked as in :mod:`~django_jobs.lifecycle.opening`: steps before the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import transaction

from ...domain.states import JobState
from ...domain.workflows import When
from ...exceptions import Cancelled
from ...models.database import execute, fetch, jobs_connection, repeat_conflicts
from ..backlog import within_limits
from ..bulk_insert import Item, NumberedSteps, copy_in, copy_rows, fields_of, rows_dropped
from ..claiming import lease_lost
from ..job_columns import NOW, ClaimedJob, NewJobs
from ..notifying import BLOCKED, notify_after_commit
from ..opening import demand_absent
from ..progress import STORED
from ..step_insert import COPY_DEPENDENCIES, NewStep, insert_steps

SPAWNED = "spawn:"
"""The keys of receipts of spawns begin with this."""

NEW_RUN = """
SELECT nextval(pg_get_serial_sequence('django_jobs_workflowrun', 'id'))
"""

LOCK = """
SELECT id, attempt, worker_id, workflow_run_id, cancel_requested_at IS NOT NULL, status
FROM django_jobs_job_live
WHERE id = ANY(%(ids)s::bigint[])
ORDER BY id
FOR NO KEY UPDATE
"""
LOCK_RUN = """
SELECT FROM django_jobs_workflowrun WHERE id = %(run)s FOR NO KEY UPDATE
"""

# What waits for the job, without what its own spawns added.
WAITING = """
SELECT dependency.child_id, dependency."when", EXISTS (
    SELECT 1 FROM django_jobs_receipt AS receipt
    WHERE receipt.job_id = %(id)s AND starts_with(receipt.key, 'spawn:')
      AND (receipt.answer ->> 'then')::bigint = dependency.child_id)
FROM django_jobs_dependency AS dependency
WHERE dependency.parent_id = %(id)s
ORDER BY dependency.child_id
"""

INSERT_RUN = f"""
INSERT INTO django_jobs_workflowrun (id, name, status, payload, tenant, ends_left, started_at)
SELECT %(run)s, job.job_type, 'running', '{{}}', job.tenant, 1, {NOW}
FROM django_jobs_job_live AS job WHERE job.id = %(id)s
"""
MAKE_STEP = """
UPDATE django_jobs_job_live SET workflow_run_id = %(run)s, step = %(step)s WHERE id = %(id)s
"""

# A step that was skipped meanwhile counts nothing; its edges are there for a retry of the run.
ADD_PREREQUISITES = """
UPDATE django_jobs_job_live SET prerequisites = coalesce(prerequisites, 0) + %(count)s
WHERE id = ANY(%(ids)s::bigint[]) AND status = 'waiting'
"""
ADD_ENDS = """
UPDATE django_jobs_workflowrun SET ends_left = ends_left + %(ends)s WHERE id = %(run)s
"""

STORE = """
INSERT INTO django_jobs_receipt (job_id, key, attempt, answer, made_at)
VALUES (%(id)s, %(key)s, %(attempt)s, %(answer)s::jsonb, clock_timestamp())
ON CONFLICT (job_id, key) DO UPDATE
SET attempt = excluded.attempt, answer = excluded.answer, made_at = excluded.made_at
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSpawn:
    """What a call of ``spawn()`` asks for. ``step`` is the name that the running job gets if it is
    no step yet. ``then`` comes after all children, and needs them to end as ``when`` says.
    ``takes`` has its arguments that get the result of the running job."""

    key: str
    name: str
    step: str
    new: NewJobs
    then: NewStep | None = None
    takes: Sequence[str] = ()
    when: When = When.SUCCEEDED


@dataclass(slots=True, kw_only=True)
class Spawned:
    """How far a spawn has come, as its receipt stores it: how many children there are, the first
    and the last of each row of their ids, and the steps that wait for them, with the condition."""

    count: int = 0
    is_done: bool = False
    ids: list[list[int]] = field(default_factory=list)
    then: int | None = None
    waiting: list[tuple[int, str]] | None = None

    def add(self, ids: Sequence[int]) -> None:
        self.count += len(ids)
        for id_ in ids:
            if self.ids and self.ids[-1][1] == id_ - 1:
                self.ids[-1][1] = id_
            else:
                self.ids.append([id_, id_])


def new_run_id() -> int:
    """An id for the run of a job that is no step yet."""
    return int(fetch(NEW_RUN, {})[0][0])


def stored(job: ClaimedJob, key: str) -> Spawned:
    rows = fetch(STORED, {"id": job.id, "key": SPAWNED + key})
    return Spawned(**json.loads(rows[0][0])) if rows else Spawned()


def add_next(job: int, name: str, following: NewStep) -> None:
    """Make a plain job, which was inserted in this transaction, the step ``name`` of a run, and
    insert the step that starts when it has ended."""
    run = new_run_id()
    _make_step(job, run, name)
    (child,) = insert_steps(run, [following])
    copy_rows(COPY_DEPENDENCIES, [f"{fields_of((run, job, child, When.FINISHED, None, None))}\n"])


@repeat_conflicts
def write_batch(
    job: ClaimedJob, spawn: NewSpawn, so_far: int, items: Sequence[Item], *, is_last: bool
) -> Spawned:
    """Insert the children with the numbers from ``so_far`` on, in a separate transaction, unless
    they are there already; return how far the spawn has come.

    Raises :class:`LeaseLost` if the job is no longer its worker's, and :class:`Cancelled` if it is
    to be cancelled. The first batch inserts ``then``, and the run of a job that is no step yet,
    with the id ``job.workflow_run_id``.
    """
    with transaction.atomic(using=jobs_connection().alias, durable=True):
        waiting, has_edges = _waiting_for(job)
        run, absent = _lock(job, spawn, [child for child, _ in waiting])
        spawned = stored(job, spawn.key)
        if spawned.count > so_far or spawned.is_done:
            return spawned
        ends = 0
        if spawned.waiting is None:
            ends += _begin(job, run, spawn, spawned, waiting, has_edges)
        if not spawned.waiting:
            ends += len(items)
        if ends:  # first, because a full queue may drop some of the children at once
            execute(ADD_ENDS, {"run": run, "ends": ends})
        if items:
            _insert(run, spawn, spawned, items)
        spawned.is_done = is_last
        parameters = {"id": job.id, "key": SPAWNED + spawn.key, "attempt": job.attempt}
        execute(STORE, {**parameters, "answer": json.dumps(asdict(spawned))})
        if absent:
            execute(LOCK_RUN, {"run": run})
            demand_absent(absent)
    return spawned


def _waiting_for(job: ClaimedJob) -> tuple[list[tuple[int, str]], bool]:
    """The steps that wait for the job to succeed or to end, with that condition; and whether any
    step waits for it. One that waits for its failure does not wait for its children."""
    rows = fetch(WAITING, {"id": job.id})
    joining = [(child, when) for child, when, own in rows if not own and when != When.FAILED]
    return joining, bool(rows)


def _lock(job: ClaimedJob, spawn: NewSpawn, waiting: Sequence[int]) -> tuple[int, set[int]]:
    """Lock the job, the steps that wait for it and the own ``then`` of the spawn. Return the run,
    made for a job that is no step, and those of the steps that do not wait: they were skipped."""
    own = stored(job, spawn.key).then
    steps = {*waiting, *([] if own is None else [own])}
    rows = fetch(LOCK, {"ids": [job.id, *steps]})
    absent = steps - {id_ for id_, *_, status in rows if status == JobState.WAITING}
    for id_, attempt, worker, run, cancelled, _ in rows:
        if (id_, attempt, worker) != job.fence:
            continue
        if cancelled:
            raise Cancelled
        if run is None:
            run = job.workflow_run_id
            _make_step(job.id, run, spawn.step)
        return int(run), absent
    raise lease_lost(job)


def _make_step(job: int, run: int | None, name: str) -> None:
    if not execute(INSERT_RUN, {"run": run, "id": job}):
        raise rows_dropped(table="django_jobs_workflowrun")
    execute(MAKE_STEP, {"run": run, "id": job, "step": name})


def _begin(
    job: ClaimedJob,
    run: int,
    spawn: NewSpawn,
    spawned: Spawned,
    waiting: Sequence[tuple[int, str]],
    has_edges: bool,
) -> int:
    """Decide which steps wait for the children, and insert ``then``; return how many more steps of
    the run no other one waits for."""
    if spawn.then is None:
        spawned.waiting = [
            (child, spawn.when if when == When.SUCCEEDED else when) for child, when in waiting
        ]
        return 0
    (spawned.then,) = insert_steps(run, [spawn.then])
    spawned.waiting = [(spawned.then, spawn.when)]
    takes = json.dumps(list(spawn.takes)) if spawn.takes else None
    edges: list[tuple[Any, ...]] = [(run, job.id, spawned.then, When.SUCCEEDED, takes, None)]
    edges += [(run, spawned.then, child, when, None, None) for child, when in waiting]
    copy_rows(COPY_DEPENDENCIES, (f"{fields_of(edge)}\n" for edge in edges))
    if waiting:
        execute(ADD_PREREQUISITES, {"count": 1, "ids": [child for child, _ in waiting]})
    return (0 if waiting else 1) - (0 if has_edges else 1)


def _insert(run: int, spawn: NewSpawn, spawned: Spawned, items: Sequence[Item]) -> None:
    new = spawn.new
    steps = NumberedSteps(run, spawn.name, spawned.count)
    waiting = spawned.waiting or []

    def write() -> list[int]:
        ids = copy_in(new, items, steps)
        for child, when in waiting:
            end = f"{child}\t{when}\t\\N\t\\N\n"
            copy_rows(COPY_DEPENDENCIES, (f"{run}\t{id_}\t{end}" for id_ in ids))
        if waiting:
            added = {"count": len(ids), "ids": [child for child, _ in waiting]}
            execute(ADD_PREREQUISITES, added)
        return ids

    gates = [gates for _, _, gates in items]
    ungated = gates.count(None)
    ids = within_limits(new, gates, write)[0] if new.has_limits(gates) else write()
    spawned.add(ids)
    if ungated:
        notify_after_commit(new.queue)
    if ungated < len(items):
        notify_after_commit(BLOCKED + new.queue)
