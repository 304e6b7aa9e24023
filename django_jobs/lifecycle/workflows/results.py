"""Read how other steps of a run ended, for the handler of a step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ...conf import conf
from ...domain.outcomes import why_not_stored
from ...domain.payload import STORED
from ...domain.states import FINAL, JobState
from ...exceptions import ResultNotStored
from ...models import Job
from ...models.database import fetch
from ..claiming import BYTES
from ..job_columns import FATE, ClaimedJob

PAGE = 1_000
"""Rows of one statement about a fan-out."""

PAGE_BYTES = 32 * 2**20
"""The most bytes of their results, but for a first one that is larger."""

MOST_NAMED = 20
"""Steps that an error names."""

TAKEN = """
SELECT dependency.takes, parent.step, parent.result, parent.reason
FROM django_jobs_dependency AS dependency
JOIN django_jobs_job AS parent ON parent.id = dependency.parent_id
WHERE dependency.child_id = %(id)s AND dependency.takes IS NOT NULL
"""

TAKEN_ARGUMENTS = """ARRAY(
    SELECT name FROM django_jobs_dependency, jsonb_array_elements_text(takes) AS name
    WHERE child_id = {id})"""
"""The arguments of the step with this id that are results of its parents, as an expression."""
ARGUMENTS_OF = f"SELECT id, {TAKEN_ARGUMENTS.format(id='id')} FROM unnest(%(ids)s::bigint[]) AS id"

# A step of a workflow within another one knows its neighbours by the names that they have there.
STEP = r"""
SELECT status, result, reason FROM django_jobs_job
WHERE workflow_run_id = %(run)s AND step IN (%(step)s, (
    SELECT substring(own.step from '^.*[.]') FROM django_jobs_job_live AS own
    WHERE own.id = %(id)s) || %(step)s)
ORDER BY length(step) DESC, id LIMIT 1
"""
# Of the steps with each fate one, if it can be one that was not skipped.
FATES = f"""
SELECT {FATE}, (array_agg(job.step ORDER BY job.skipped IS NOT NULL, job.id))[1]
FROM django_jobs_dependency AS dependency
JOIN django_jobs_job AS job ON job.id = dependency.parent_id
WHERE dependency.child_id = %(id)s
GROUP BY 1
"""
NAMES = """
SELECT step FROM django_jobs_job
WHERE workflow_run_id = %(run)s AND (%(ended)s IS NOT TRUE OR finished_at IS NOT NULL)
ORDER BY id LIMIT %(limit)s
"""


def _within_bytes(page: str, more: str) -> str:
    """The first steps of ``page`` whose results are not too large together, each with the number of
    all and with what is ``more``."""
    size = BYTES.format("job.result")
    return f"""
SELECT id, step, status, result, reason, rows, {more}
FROM (
    SELECT job.id, job.step, job.status, job.result, job.reason, count(*) OVER () AS rows,
        {size} AS bytes, sum({size}) OVER (ORDER BY job.id ROWS UNBOUNDED PRECEDING) AS up_to
    FROM {page}
) AS step
WHERE up_to IS NULL OR up_to <= %(bytes)s OR up_to = bytes
ORDER BY id
"""


# A page of ids first, because the planner does not know how many partitions to look into for them.
# OFFSET 0, or it may read all receipts.
# A parent that spawned others is left out: these stand for it.
PARENTS = _within_bytes(
    """(
        SELECT parent_id FROM django_jobs_dependency
        WHERE child_id = %(id)s AND parent_id > %(after)s
        ORDER BY parent_id LIMIT %(limit)s
    ) AS page
    JOIN django_jobs_job AS job ON job.id = page.parent_id""",
    """EXISTS (
    SELECT 1 FROM django_jobs_receipt AS receipt
    WHERE receipt.job_id = step.id AND starts_with(receipt.key, 'spawn:') OFFSET 0)""",
)
OF_IDS = _within_bytes("django_jobs_job AS job WHERE job.id = ANY(%(ids)s::bigint[])", "false")


class _Row(NamedTuple):
    id: int
    step: str
    status: str
    result: Any


class StepResult(_Row):
    """A step of a fan-out: ``status`` is that of its job, and ``result`` is None if it did not
    succeed. Reading one that was not stored, by its name, its index or as a variable of a loop,
    raises :class:`ResultNotStored`."""

    __slots__ = ()

    @property
    def result(self) -> Any:
        return self[3]

    def __iter__(self) -> Iterator[Any]:
        return map(_readable, super().__iter__())

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return tuple(map(_readable, found)) if isinstance(index, slice) else _readable(found)


def taken_results(job: ClaimedJob) -> dict[str, Any]:
    """The arguments of a step that are results of parents. Raises :class:`ResultNotStored`."""
    return {
        name: _stored(step, result, reason)
        for takes, step, result, reason in fetch(TAKEN, {"id": job.id})
        for name in json.loads(takes)
    }


def taken_arguments(ids: Iterable[int]) -> dict[int, list[str]]:
    """Of each of these steps, the arguments that are results of its parents."""
    return dict(fetch(ARGUMENTS_OF, {"ids": list(ids)}))


def fates_before(id_: int) -> dict[str, str]:
    """How the steps ended for which a step waited: the name of one of them by its fate."""
    return dict(fetch(FATES, {"id": id_}))


def result_of(run: int, step: str, id_: int) -> Any:
    """The result of a step that has ended, for the step ``id_``; None if it did not succeed. Raises
    ``KeyError`` for a step that has not ended, and for an unknown one, with the names of the steps
    that there are, and :class:`ResultNotStored`."""
    rows = fetch(STEP, {"run": run, "step": step, "id": id_})
    if not rows:
        names = step_names(run, limit=MOST_NAMED + 1)
        more = ", ..." if len(names) > MOST_NAMED else ""
        raise KeyError(
            f"there is no step {step!r}; the steps of the run are "
            f"{', '.join(names[:MOST_NAMED])}{more}"
        )
    ((status, result, reason),) = rows
    if JobState(status) not in FINAL:
        raise KeyError(f"step {step!r} has not ended, because it is not upstream of this one")
    return _stored(step, result, reason)


def step_names(run: int, *, limit: int | None = None, ended: bool = False) -> list[str]:
    """The names of the steps of a run, or of those that have ``ended``."""
    return [name for (name,) in fetch(NAMES, {"run": run, "limit": limit, "ended": ended})]


def parents_after(job: ClaimedJob, after: int) -> tuple[list[StepResult], int | None]:
    """A page of the steps that a step waited for, in the order of their ids, and what to pass as
    ``after`` for the next page; None after the last one."""
    rows = fetch(PARENTS, {"id": job.id, "after": after, "limit": PAGE, **_most()})
    page = [_child(*row) for *row, _, spawned in rows if not spawned]
    is_last = not rows or PAGE > rows[0][-2] == len(rows)
    return page, None if is_last else rows[-1][0]


def steps_of(ids: Sequence[int]) -> tuple[list[StepResult], list[int]]:
    """The first of these steps, in the order of their ids, and the ids that are left."""
    rows = fetch(OF_IDS, {"ids": list(ids), **_most()})
    is_cut = bool(rows) and len(rows) < rows[0][-2]
    left = [id_ for id_ in ids if id_ > rows[-1][0]] if is_cut else []
    return [_child(*row) for *row, _, _ in rows], left


def _most() -> dict[str, int]:
    return {"bytes": PAGE_BYTES, "largest": conf().max_result_bytes}


def _child(id_: int, step: str, status: str, result: str | None, reason: str) -> StepResult:
    try:
        return StepResult(id_, step, status, _stored(step, result, reason))
    except ResultNotStored as problem:  # a handler that reads the status alone can go on
        return StepResult(id_, step, status, problem)


def _readable(value: Any) -> Any:
    if isinstance(value, ResultNotStored):
        raise value
    return value


def _stored(step: str, result: str | None, reason: str) -> Any:
    if why := why_not_stored(result, reason):
        raise ResultNotStored(
            f"the result of step {step!r} was not stored: {why}; return an id or a path from it "
            "instead"
        )
    return decoded(result)


def result_in(job: Job) -> Any:
    """The result of a job, with the files that it refers to. Raises what the storage raises."""
    if conf().storage is None:
        return job.result
    from ..stored_files import Stored

    return Stored.load(job.result)


def decoded(result: str | None) -> Any:
    """The value of this JSON text, with the files that it refers to."""
    value = None if result is None else json.loads(result)
    if result is not None and STORED in result and conf().storage is not None:
        from ..stored_files import loaded

        return loaded(value)
    return value
