"""Operations on all jobs that match: requested here, carried out in chunks by the workers.

``maintenance.bulk_operations`` calls the operations of this room on the jobs of each chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from ...domain.bulk import LONGEST_TERM, are_same, checked_terms
from ...domain.errors import ErrorReport
from ...domain.numbers import is_priority
from ...domain.replay_plan import OUTCOME_OF, Outcome, ReplayPlan
from ...domain.states import UNFINISHED, BulkState, JobState, RunState
from ...exceptions import OperationRefused
from ...models import BulkAction, BulkOperation, Job
from ...models.bulk_operation import PERMISSIONS
from ...models.database import database_time, execute, fetch, jobs_connection
from ..dead_letters import queues_with_dead
from ..notifying import OPERATIONS, emit_after_commit, notify_after_commit
from ..scope import Scope, scope_of
from .jobs import LOCK_JOBS, Actor, demand, name_of

PAGE = 5_000
"""Jobs that one statement looks at."""
COUNTED = 100_000
"""Jobs that are looked at for an estimate of how many match."""
KEPT = {"again", "awaited", "failed", "counted", "stopped_seconds", "error_class"}
"""What of the progress an operation keeps that continues."""

CONDITIONS: Mapping[str, str] = {
    "status": "job.status = %(status)s",
    "queue": "job.queue = %(queue)s",
    "job_type": "job.job_type = %(job_type)s",
    "key": "job.idempotency_key IN (%(key)s, regexp_replace(%(key)s::text, '/', chr(31)))",
    "tenant": "job.tenant = %(tenant)s",
    "schedule": "job.schedule_id = %(schedule)s",
    "workflow_run": "job.workflow_run_id = %(workflow_run)s",
    "created_since": "job.created_at >= %(created_since)s::timestamptz",
    "finished_since": "job.finished_at >= %(finished_since)s::timestamptz",
    "error": "job.fingerprint = %(error)s",
    "tag": "job.tags @> ARRAY[%(tag)s::text]",
    "scope": """(%(queues)s::text[] IS NULL OR job.queue = ANY(%(queues)s::text[]))
        AND (%(job_types)s::text[] IS NULL OR EXISTS (
            SELECT FROM unnest(%(job_types)s::text[]) AS name
            WHERE job.job_type = name
               OR (name LIKE '%%*' AND starts_with(job.job_type, left(name, -1)))))""",
    "code": """EXISTS (
        SELECT FROM django_jobs_run AS run
        WHERE run.job_id = job.id AND run.attempt = job.attempt
          AND run.finished_at = job.finished_at AND run.error_code = %(code)s)""",
}
IDS = "job.id = ANY(%(ids)s::bigint[])"

# One page in the order of the ids, however few of them match, so that each statement is short. Only
# live and dead jobs are looked at; nothing can be done to the others.
_PAGE = """
WITH page AS MATERIALIZED (
    SELECT job.id, ({conditions}) AS matches
    FROM django_jobs_job_live AS job
    WHERE {those} AND job.id > %(after)s::bigint AND job.id <= %(max_id)s::bigint
    ORDER BY job.id
    LIMIT %(page)s
)
"""
_FIND = f"""{_PAGE}
SELECT coalesce(array_agg(id ORDER BY id) FILTER (WHERE matches), '{{{{}}}}'), max(id), count(*)
FROM page
"""
_COUNT = f"""{_PAGE}
SELECT count(*) FILTER (WHERE matches), min(id), max(id), count(*) FROM page
"""

# The first run after the replay that says how the job went. A job that ended without one was
# cancelled, or succeeded where runs are not kept; the history is read for these alone. One that is
# not there either has succeeded: no other is deleted within the hour.
OUTCOMES = f"""
SELECT awaited.job, coalesce(first.outcome, job.status, (
    SELECT ended.status FROM django_jobs_job AS ended
    WHERE ended.id = awaited.job AND ended.status IN ('succeeded', 'cancelled')
      AND ended.finished_at >= %(since)s::timestamptz LIMIT 1
), '{RunState.SUCCEEDED}')
FROM unnest(%(jobs)s::bigint[], %(attempts)s::int[]) AS awaited (job, attempt)
LEFT JOIN LATERAL (
    SELECT outcome FROM django_jobs_run AS run
    WHERE run.job_id = awaited.job AND run.attempt > awaited.attempt
      AND run.finished_at >= %(since)s::timestamptz
      AND run.outcome NOT IN ('{RunState.SNOOZED}', '{RunState.RELEASED}')
    ORDER BY run.attempt LIMIT 1
) AS first ON true
LEFT JOIN LATERAL (
    SELECT status FROM django_jobs_job_live AS job
    WHERE job.id = awaited.job LIMIT 1
) AS job ON true
"""

OF_LOCKED_RUNS = """
WITH step AS MATERIALIZED (
    SELECT id, workflow_run_id AS run FROM django_jobs_job_live
    WHERE id = ANY(%(ids)s::bigint[]) AND workflow_run_id IS NOT NULL
), free AS MATERIALIZED (
    SELECT id FROM django_jobs_workflowrun WHERE id = ANY(ARRAY(SELECT run FROM step))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM step WHERE run NOT IN (SELECT id FROM free)
"""

ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended('django_jobs.bulk', 0))"

ANY_UNFINISHED = """EXISTS (
    SELECT FROM django_jobs_bulkoperation WHERE status IN ('pending', 'running'))"""

WAIT_A_SECOND = "SET LOCAL lock_timeout = 1000"

NEWEST = "SELECT coalesce(max(id), 0) FROM django_jobs_job_live"


class Counted(NamedTuple):
    """How many jobs match, and whether all were looked at. The number is an estimate otherwise."""

    jobs: int
    is_exact: bool


class Found(NamedTuple):
    """The jobs of a page that match, where it ended, and whether it was the last."""

    ids: list[int]
    last: int
    is_last: bool


def start(
    action: str,
    terms: Mapping[str, Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    plan: ReplayPlan | None = None,
    actor: Actor = None,
    by: str = "",
    reason: str = "",
    max_id: int | None = None,
) -> BulkOperation:
    """Ask the workers to do ``action`` to all jobs of which ``terms`` are true, up to ``max_id`` or
    the newest one. If the same is under way for all of these jobs, that operation is returned, with
    ``deduplicated`` True. Raises ``OperationRefused`` for something that cannot be asked."""
    if action not in PERMISSIONS:
        raise OperationRefused(f"an operation is one of {', '.join(PERMISSIONS)}, not {action!r}")
    demand(actor, PERMISSIONS[action], reason)
    given = dict(arguments or {})
    try:
        checked = checked_terms(in_scope(terms, actor))
    except ValueError as error:
        raise OperationRefused(str(error)) from None
    expected = {"priority"} if action == BulkAction.REPRIORITIZE else set()
    if set(given) != expected or not all(is_priority(value) for value in given.values()):
        raise OperationRefused(f"these are no arguments of {action!r}: {given}")
    if plan is not None and action != BulkAction.REPLAY:
        raise OperationRefused(f"only a replay has a plan, not {action!r}")
    error_class = _error_class(checked)
    with transaction.atomic(using=jobs_connection().alias):
        execute(ONE_AT_A_TIME, {})
        ceiling = newest() if max_id is None else min(max_id, newest())
        same = _under_way(action, given, checked, ceiling)
        if same is not None:
            same.deduplicated = True
            return same
        notify_after_commit(OPERATIONS)
        return _rows().create(
            action=action,
            arguments=given,
            terms=checked,
            plan=plan.as_json() if plan else None,
            progress={"error_class": error_class} if error_class else {},
            actor_id="" if actor is None else str(actor.pk),
            actor_name=(name_of(actor) or by)[:200],
            reason=reason[:300],
            max_id=ceiling,
            next_at=Now(),
            created_at=Now(),
        )


def in_scope(terms: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
    """The terms, limited to the scope of ``actor``."""
    scope = scope_of(actor)
    return dict(terms) if scope is None else {**terms, "scope": scope.as_term()}


def demand_same(actor: Actor, operation: BulkOperation) -> None:
    """Raise ``PermissionDenied`` if ``actor`` may not do what an operation does, or has another
    scope than it."""
    demand(actor, PERMISSIONS[operation.action])
    if in_scope(operation.terms, actor) != operation.terms:
        raise PermissionDenied(f"{name_of(actor)} may act on other queues and job types")


def _error_class(terms: Mapping[str, Any]) -> str:
    """The class of the error whose fingerprint is a term, as long as a job has it."""
    if not terms.get("error"):
        return ""
    found = Job.objects.using(jobs_connection().alias).filter(
        queue__in=queues_with_dead(), fingerprint=terms["error"], status=JobState.DEAD
    )
    if "job_type" in terms:
        found = found.filter(job_type=terms["job_type"])
    found = found.filter(Scope.of_term(terms).of(queue="queue", job_type="job_type"))
    summary = found.values_list("last_error", flat=True).first() or ""
    return summary.partition(": ")[0][:LONGEST_TERM]


def _under_way(
    action: str, arguments: Mapping[str, Any], terms: Mapping[str, Any], max_id: int
) -> BulkOperation | None:
    """The unfinished operation that does this to all jobs up to ``max_id``. One that has changed
    them all, and waits for outcomes, does it no more."""
    unfinished = _rows().filter(status__in=UNFINISHED, stop_requested_by="", max_id__gte=max_id)
    for operation in unfinished.filter(action=action, arguments=arguments):
        if not operation.progress.get("all_sent") and are_same(operation.terms, terms):
            return operation
    return None


def newest() -> int:
    """The id of the newest live or dead job; 0 if there is none."""
    ((id_,),) = fetch(NEWEST, {})
    return int(id_)


def stop(ids: Iterable[int], *, actor: Actor = None, by: str = "") -> list[int]:
    """Ask for operations to be stopped; the chunk that runs is completed. Returns the ids of those
    that were not asked before. Raises ``PermissionDenied`` if ``actor`` may not do what they do."""
    asked: list[int] = []
    who = (name_of(actor) or by or "a command")[:200]
    operations = list(_rows().filter(pk__in=list(ids), status__in=UNFINISHED))
    for operation in operations:
        demand_same(actor, operation)
    for operation in operations:
        mine = _rows().filter(pk=operation.pk, status__in=UNFINISHED, stop_requested_by="")
        if mine.update(stop_requested_by=who, next_at=Now()):
            asked.append(operation.pk)
    return asked


def resume(ids: Iterable[int], *, actor: Actor = None, by: str = "") -> list[int]:
    """Continue operations that were stopped or failed, in the name of ``actor``. A plan begins with
    its first wave again. Returns the ids of those that continue; one that another does meanwhile is
    left. Raises ``PermissionDenied`` if ``actor`` may not do what they do."""
    continued: list[int] = []
    over = (BulkState.STOPPED, BulkState.FAILED)
    with transaction.atomic(using=jobs_connection().alias):
        execute(ONE_AT_A_TIME, {})
        for operation in _rows().filter(pk__in=list(ids), status__in=over).select_for_update():
            demand_same(actor, operation)
            if _under_way(operation.action, operation.arguments, operation.terms, operation.max_id):
                continue
            operation.progress = _kept(operation)
            operation.status = BulkState.PENDING
            operation.why = operation.stop_requested_by = ""
            operation.finished_at = None
            operation.actor_id = "" if actor is None else str(actor.pk)
            operation.actor_name = (name_of(actor) or by)[:200]
            operation.next_at = Now()
            operation.save()
            continued.append(operation.pk)
        if continued:
            notify_after_commit(OPERATIONS)
    return continued


def _kept(operation: BulkOperation) -> dict[str, Any]:
    """The progress with which an operation continues. The time since it ended counts as stopped."""
    kept = {name: value for name, value in operation.progress.items() if name in KEPT}
    if operation.started_at is not None and operation.finished_at is not None:
        since = (database_time() - operation.finished_at).total_seconds()
        kept["stopped_seconds"] = kept.get("stopped_seconds", 0.0) + max(since, 0.0)
    return kept


def take(pk: int | None = None) -> BulkOperation | None:
    """Lock this operation, or the one whose next chunk is due, if it is unfinished and no other
    session works on it. One that cannot be read ends, so that the others have their turn."""
    unfinished = _rows().filter(status__in=UNFINISHED)
    wanted = unfinished.filter(next_at__lte=Now()) if pk is None else unfinished.filter(pk=pk)
    locked = wanted.select_for_update(skip_locked=True, no_key=True).order_by("next_at")
    try:
        return locked.first()
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, for example
        _end_unreadable(locked.values_list("pk", flat=True)[0], ErrorReport.of(error).summary)
    return take(pk)


def _end_unreadable(pk: int, why: str) -> None:
    row = _rows().filter(pk=pk)
    row.update(status=BulkState.FAILED, why=why[:300], finished_at=Now())
    ((action, by, done, left),) = row.values_list("action", "actor_name", "done", "left")
    fields = {"operation": pk, "action": action, "by": by, "done": done, "left": left}
    fields |= {"seconds": None, "reason": why[:300]}
    emit_after_commit("operation_failed", logging.ERROR, **fields)


def store(operation: BulkOperation) -> None:
    """Write what a chunk changed in the fields."""
    operation.save()


def postpone(pk: int, seconds: float) -> None:
    """Leave an operation alone for a while."""
    _rows().filter(pk=pk).update(next_at=Now() + timedelta(seconds=seconds))


def find(action: str, terms: Mapping[str, Any], after: int, max_id: int, page: int = PAGE) -> Found:
    """The matching jobs among the ``page`` that come after an id."""
    sql, parameters = statement(_FIND, action, terms)
    limits = {"after": after, "max_id": max_id, "page": page}
    ((ids, last, seen),) = fetch(sql, parameters | limits)
    return Found(ids, max_id if last is None else last, seen < page)


def count(action: str, terms: Mapping[str, Any], max_id: int, looked: int = COUNTED) -> Counted:
    """How many jobs match: exact if fewer than ``looked`` jobs are live or dead. Otherwise all are
    taken to be like the oldest ones."""
    sql, parameters = statement(_COUNT, action, terms)
    limits = {"after": 0, "max_id": max_id, "page": looked}
    ((matches, first, last, seen),) = fetch(sql, parameters | limits)
    if seen < looked:
        return Counted(int(matches), is_exact=True)
    estimate = int(matches * (max_id - first + 1) / (last - first + 1))
    return Counted(estimate, is_exact=False)


def statement(template: str, action: str, terms: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The statement for a action and terms, with the values of the terms as its parameters."""
    conditions = [CONDITIONS[name] for name in CONDITIONS if name in terms]
    dead = action in (BulkAction.REPLAY, BulkAction.DISMISS)
    those = "job.status = 'dead'" if dead else "true"
    if "ids" in terms:
        those += f" AND {IDS}"
    sql = template.format(conditions=" AND ".join(conditions) or "true", those=those)
    return sql, {**terms, **{name: terms.get("scope", {}).get(name) for name in Scope._fields}}


def lock(ids: list[int]) -> list[int]:
    """Lock these jobs but for those that another session has locked; return the locked ones."""
    return [id_ for (id_,) in fetch(f"{LOCK_JOBS} SKIP LOCKED", {"ids": ids})]


def wait_a_second() -> None:
    """Wait no longer than a second for each lock, until the transaction ends."""
    execute(WAIT_A_SECOND, {})


def of_locked_runs(ids: list[int]) -> list[int]:
    """Those of these jobs that are steps of a run which another session locks. Keeps no lock."""
    with transaction.atomic(using=jobs_connection().alias):
        steps = [id_ for (id_,) in fetch(OF_LOCKED_RUNS, {"ids": ids})]
        transaction.set_rollback(True, using=jobs_connection().alias)
    return steps


def outcomes(
    awaited: list[list[int]], since: datetime
) -> tuple[dict[int, Outcome], list[list[int]]]:
    """How each replayed job ended, for those that are known, and the pairs of job and last attempt
    that are not. ``since`` is when the replays began."""
    parameters = {
        "jobs": [job for job, _ in awaited],
        "attempts": [attempt for _, attempt in awaited],
        "since": since,
    }
    known = {job: OUTCOME_OF[how] for job, how in fetch(OUTCOMES, parameters) if how in OUTCOME_OF}
    return known, [pair for pair in awaited if pair[0] not in known]


def prune(older_than: float) -> int:
    """Delete the operations that ended more than ``older_than`` seconds ago; return how many. Those
    that another session has locked are left to the next call."""
    with transaction.atomic(using=jobs_connection().alias):
        ended = _rows().filter(finished_at__lt=Now() - timedelta(seconds=older_than))
        free = list(ended.select_for_update(skip_locked=True).values_list("pk", flat=True))
        return _rows().filter(pk__in=free).delete()[0]


def _rows() -> QuerySet[BulkOperation]:
    return BulkOperation.objects.using(jobs_connection().alias)
