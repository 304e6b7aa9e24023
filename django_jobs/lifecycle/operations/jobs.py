"""Operations on jobs, queues and workers. Each checks the actor's permission again.

Each is one transaction, except replay: that is one per job, so that a refused job does not hold
back the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from django.contrib.auth.base_user import AbstractBaseUser
from django.core.exceptions import PermissionDenied
from django.db import DataError, IntegrityError, transaction
from django.db.models import CharField, Func
from django.utils.translation import gettext_noop

from ...domain.errors import MAX_MESSAGE, ErrorReport, reason_problem
from ...domain.numbers import is_priority
from ...exceptions import OperationRefused
from ...models import Job, Worker
from ...models.database import fetch, fetch_last, jobs_connection, repeat_conflicts
from ..job_columns import AT_THE_GATES, REPLAYED
from ..notifying import CANCELLED, GATES, notify_after_commit
from ..opening import follow_cancelled
from ..pausing import give_up_slots
from ..scope import LIMITED, Scope, limited, scope_of
from ..waits import FORGET_TIMEOUTS, WAKE
from ..workflows.restarting import KEY_TAKEN, is_key_of_run, restart, restart_problem, see_run
from . import OperationResult

Actor = Any
"""A user (with ``has_perm``), or None for code and the command line, which may do everything."""

# Runs before any operation on several jobs. All lock jobs in the order of their ids, so that they
# cannot deadlock, and nothing changes between two statements of one operation.
LOCK_JOBS = """
SELECT id FROM django_jobs_job_live WHERE id = ANY(%(ids)s::bigint[])
ORDER BY id
FOR NO KEY UPDATE
"""
REPRIORITIZE = """
UPDATE django_jobs_job_live AS job SET priority = %(priority)s,
    rank = extract(epoch FROM job.available_at)::float8 - %(priority)s * queue.priority_weight
FROM django_jobs_queue AS queue
WHERE queue.name = job.queue AND job.id = ANY(%(ids)s::bigint[])
  AND job.status IN ('waiting', 'scheduled', 'blocked', 'ready')
RETURNING job.id, job.queue
"""
RUN_NOW = f"""
UPDATE django_jobs_job_live AS job SET status = {AT_THE_GATES}, available_at = clock.now,
    rank = job.rank + extract(epoch FROM clock.now)::float8
           - extract(epoch FROM job.available_at)::float8
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'scheduled'
RETURNING job.id, job.queue
"""
REPLAY = f"""
WITH forgotten AS ({FORGET_TIMEOUTS})
UPDATE django_jobs_job_live AS job SET status = {AT_THE_GATES}, available_at = clock.now,
    rank = job.rank + extract(epoch FROM clock.now)::float8
           - extract(epoch FROM job.available_at)::float8, {REPLAYED}
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = %(id)s AND job.status = 'dead'
RETURNING job.id
"""
PAUSE = """
UPDATE django_jobs_queue
SET paused_at = clock_timestamp(), paused_reason = %(reason)s, paused_by = %(by)s,
    paused_until = %(until)s::timestamptz
WHERE name = ANY(%(names)s::text[]) AND paused_at IS NULL
RETURNING name
"""
RESUME = """
UPDATE django_jobs_queue
SET paused_at = NULL, paused_reason = '', paused_by = '', paused_until = NULL,
    resumed_at = clock_timestamp()
WHERE name = ANY(%(names)s::text[]) AND paused_at IS NOT NULL
  AND (NOT %(ended)s OR paused_until <= clock_timestamp())
RETURNING name
"""
NEEDED = "queue", "job_type", "idempotency_key", "payload_version", "workflow_run_id", "step"
"""The fields of a job that a replay needs, besides its payload, which is read one by one."""

STOP_WORKER = """
UPDATE django_jobs_worker SET drain_requested_at = clock_timestamp(), stop_reason = %(reason)s
WHERE id = ANY(%(ids)s::bigint[]) AND status IN ('running', 'draining')
  AND drain_requested_at IS NULL
RETURNING id
"""
_BESIDES = """
SELECT other.id FROM django_jobs_worker AS chosen
JOIN django_jobs_worker AS other ON other.host = chosen.host AND {same}
WHERE chosen.id = ANY(%(ids)s::bigint[]) AND chosen.status IN ('running', 'draining')
  AND other.status IN ('running', 'draining') AND other.drain_requested_at IS NULL
ORDER BY other.id
"""
OF_COMMAND = _BESIDES.format(same="other.supervisor_pid = chosen.supervisor_pid")
OF_HOST = _BESIDES.format(same="true")


@limited
def cancel(
    ids: Iterable[int], *, actor: Actor = None, reason: str = "", wait: bool = True
) -> OperationResult:
    """Cancel jobs: at once if they are not running; otherwise the cancel is requested.
    ``wait=False`` leaves the jobs alone that another session has locked."""
    demand(actor, "django_jobs.cancel_job", reason)
    why = reason or signed("cancelled", name_of(actor), "")
    return _cancel(list(ids), why, wait, asked="" if why == "cancelled" else why)


@limited
def stop(
    ids: Iterable[int], *, actor: Actor = None, by: str = "", reason: str = ""
) -> OperationResult:
    """Stop jobs by force: those that are not running are cancelled, and the others end with an
    exception in their handler, or with its process."""
    demand(actor, "django_jobs.stop_job", reason)
    by = name_of(actor) or by
    forced = signed("stopped by force", by, reason)
    return _cancel(list(ids), signed("cancelled", by, reason), True, asked=forced, force=True)


@repeat_conflicts
def _cancel(
    wanted: list[int], why: str, wait: bool, *, asked: str, force: bool = False
) -> OperationResult:
    """Cancel those that do not run with the reason ``why``, and ask the others for ``asked``."""
    from ..cancelling import ASK_TO_CANCEL, CANCEL_PENDING

    request = {"reason": asked[:MAX_MESSAGE], "force": force}
    with transaction.atomic(using=jobs_connection().alias):
        locking = LOCK_JOBS if wait else f"{LOCK_JOBS} SKIP LOCKED"
        locked = [id_ for (id_,) in fetch(locking, {"ids": wanted})]
        cancelled = fetch(CANCEL_PENDING, {"ids": locked, "reason": why})
        follow_cancelled([(id_, run) for id_, run, _ in cancelled])
        stopped = [id_ for id_, _, _ in cancelled]
        running = [id_ for (id_,) in fetch(ASK_TO_CANCEL, {"ids": locked, **request})]
        result = result_of(wanted, stopped + running)
        if running:
            notify_after_commit(CANCELLED)
        if any(has_gates for _, _, has_gates in cancelled):  # it may have held slots
            notify_after_commit(GATES)
    result.asked = running
    return result


@limited
def reprioritize(ids: Iterable[int], priority: int, *, actor: Actor = None) -> OperationResult:
    """Set the priority, from -100 to 100, of jobs that have not started. Raises
    ``OperationRefused`` for a number outside."""
    demand(actor, "django_jobs.reprioritize_job")
    if not is_priority(priority):
        raise OperationRefused(f"a priority is from -100 to 100, not {priority}")
    wanted = list(ids)
    return _moved(wanted, [REPRIORITIZE], {"ids": wanted, "priority": priority})


@limited
def run_now(ids: Iterable[int], *, actor: Actor = None) -> OperationResult:
    """Make scheduled or sleeping jobs ready."""
    demand(actor, "django_jobs.run_job")
    wanted = list(ids)
    return _moved(wanted, [WAKE, RUN_NOW], {"ids": wanted, "run_at": None})


@limited
def replay(
    ids: Iterable[int],
    *,
    check: Callable[[Job], str | None],
    actor: Actor = None,
    by: str = "",
    reason: str = "",
) -> OperationResult:
    """Send dead jobs back to their queue with their counters at zero and all their runs kept.

    ``check`` is called with each job and returns why it cannot run today (an unknown handler, a
    payload its handler no longer takes), or None. A job is also refused while a live one holds its
    idempotency key. Who, when and why is stored in the job's headers under ``replays``. With a step
    of a workflow, those come back that were skipped because of it, and its run is running again.
    """
    demand(actor, "django_jobs.replay_job", reason)
    alias = jobs_connection().alias
    result, scope = OperationResult(), scope_of(actor) or Scope()
    wanted = list(ids)
    # ``check`` reads the payload, so that a job with an unreadable one is refused alone.
    dead_jobs = Job.objects.using(alias).dead().filter(pk__in=wanted)
    dead = {job.pk: job for job in dead_jobs.only(*NEEDED)}
    kind = Func("headers", function="jsonb_typeof", output_field=CharField())
    headers = dict(dead_jobs.values_list("pk", kind))
    others = _why_not({id_ for id_ in wanted if id_ not in dead})
    for id_ in wanted:
        problem = others.get(id_) or not_replayable(dead[id_], headers.get(id_), check)
        if problem is None:
            problem = replay_one(dead[id_], name_of(actor) or by, reason, alias, scope)
        if problem is None:
            result.done.append(id_)
        else:
            result.refused[id_] = problem
    return result


class Pause(TypedDict, total=False):
    """By whom, why and until when something is paused."""

    actor: Actor
    by: str
    reason: str
    until: datetime | None


def fields_of(pause: Pause, permission: str) -> dict[str, Any]:
    """What is stored of a pause. Raises ``PermissionDenied`` if its actor may not."""
    actor, reason = pause.get("actor"), pause.get("reason", "")
    demand(actor, permission, reason)
    by = (name_of(actor) or pause.get("by", ""))[:150]
    why = (reason or signed("paused", by, ""))[:300]
    return {"reason": why, "by": by, "until": pause.get("until")}


def pause(names: Iterable[str], **given: Unpack[Pause]) -> list[str]:
    """Stop workers from claiming from these queues. Jobs that run are not affected, and those that
    are ready give up the slots of their gates. Returns the names of the queues it paused."""
    fields = fields_of(given, "django_jobs.pause_queue")
    names = _inside(names, given.get("actor"))
    with transaction.atomic(using=jobs_connection().alias):
        paused = _queues(PAUSE, {"names": list(names), **fields})
        give_up_slots(paused)
    return paused


def resume(names: Iterable[str], *, actor: Actor = None, ended: bool = False) -> list[str]:
    """Let workers claim from these queues again; of ``ended``, those whose pause is over. Returns
    the names of those that were paused."""
    demand(actor, "django_jobs.pause_queue")
    names = _inside(names, actor)
    resumed = _queues(RESUME, {"names": list(names), "ended": ended})
    for name in resumed:
        notify_after_commit(name)
    return resumed


def stop_workers(ids: Iterable[int], *, actor: Actor = None, by: str = "") -> OperationResult:
    """Ask workers to drain and exit; they see the request at their next heartbeat."""
    return _stop(list(ids), "drained", actor, by)


def stop_commands(ids: Iterable[int], *, actor: Actor = None, by: str = "") -> OperationResult:
    """As :func:`stop_workers`, for all processes of the commands of these workers."""
    return _stop(list(ids), "drained with its command", actor, by, OF_COMMAND)


def stop_hosts(ids: Iterable[int], *, actor: Actor = None, by: str = "") -> OperationResult:
    """As :func:`stop_workers`, for all commands on the hosts of these workers."""
    return _stop(list(ids), "drained with its host", actor, by, OF_HOST)


def _stop(wanted: list[int], why: str, actor: Actor, by: str, others: str = "") -> OperationResult:
    demand(actor, "django_jobs.stop_worker")
    if others:
        wanted = sorted({id_ for (id_,) in fetch(others, {"ids": wanted})}.union(wanted))
    rows = fetch(
        STOP_WORKER, {"ids": wanted, "reason": signed(why, name_of(actor) or by, "")[:300]}
    )
    return result_of(wanted, [id_ for (id_,) in rows], Worker)


def not_replayable(job: Job, headers: str | None, check: Callable[[Job], str | None]) -> str | None:
    """Why a job cannot be replayed, or None. ``headers`` is their JSON type; None without a row."""
    if headers is None:
        return gettext_noop("it is not dead any more")
    if headers != "object":  # a row that was not written by enqueue
        return f"its headers are JSON of type {headers}, not an object: nowhere to note the replay"
    return check(job)


@repeat_conflicts
def replay_one(job: Job, by: str, reason: str, alias: str, scope: Scope) -> str | None:
    parameters = {"id": job.pk, "ids": [job.pk], "by": by, "why": reason}
    try:
        with transaction.atomic(using=alias):
            if job.workflow_run_id is not None:
                return _replay_step(job, job.workflow_run_id, by, reason)
            if not fetch(REPLAY, parameters):
                return gettext_noop("it is not dead any more")
            notify_after_commit(job.queue)
    except DataError as error:
        return f"PostgreSQL refuses it: {ErrorReport.of(error).summary}"
    except IntegrityError as error:
        if is_key_of_run(error):
            return KEY_TAKEN
        holders = Job.objects.using(alias).holding_key(job.queue, job.idempotency_key or "")
        holder = holders.filter(scope.of(queue="queue", job_type="job_type")).first()
        name = f"job {holder.pk} ({holder.status})" if holder else "another job"
        return f"{name} holds its idempotency key {job.idempotency_key!r}"
    return None


def _replay_step(job: Job, run_id: int, by: str, reason: str) -> str | None:
    run = see_run(run_id)
    if problem := restart_problem(run, job.pk):
        return problem
    assert run is not None
    return None if restart(run, [job.pk], by, reason) else gettext_noop("it is not dead any more")


@repeat_conflicts
def _moved(
    wanted: list[int], statements: Sequence[str], parameters: dict[str, Any]
) -> OperationResult:
    with transaction.atomic(using=jobs_connection().alias):
        fetch(LOCK_JOBS, {"ids": wanted})
        rows = fetch_last(statements, parameters)
        for queue in {queue for _, queue in rows}:
            notify_after_commit(queue)
        return result_of(wanted, [id_ for id_, _ in rows])


def _inside(names: Iterable[str], actor: Actor) -> list[str]:
    """The names. Raises ``PermissionDenied`` for a queue outside of the scope of ``actor``."""
    wanted, scope = list(names), scope_of(actor)
    if scope is not None and (scope.queues is None or not set(wanted) <= set(scope.queues)):
        raise PermissionDenied(f"{name_of(actor)} may act on some queues and job types only")
    return wanted


def _queues(sql: str, parameters: dict[str, Any]) -> list[str]:
    return sorted(name for (name,) in fetch(sql, parameters))


def result_of(
    wanted: Collection[int], done: list[int], model: type[Job | Worker] = Job
) -> OperationResult:
    missed = set(wanted) - set(done)
    return OperationResult(done=sorted(done), refused=_why_not(missed, model))


def _why_not(missed: Collection[int], model: type[Job | Worker] = Job) -> dict[int, str]:
    if not missed:
        return {}
    rows = model._default_manager.using(jobs_connection().alias).filter(pk__in=missed)
    statuses = dict(rows.values_list("pk", "status"))
    nothing = f"there is no such {model._meta.model_name}"
    return {id_: f"it is {statuses[id_]}" if id_ in statuses else nothing for id_ in sorted(missed)}


def demand(actor: Actor, permission: str, reason: str = "") -> None:
    """Raise ``PermissionDenied`` if ``actor`` lacks ``permission``, or has a scope and it is for an
    operation that does not look at it. Raises ``OperationRefused`` or ``TypeError`` for a
    ``reason`` that cannot be stored."""
    if actor is not None and not actor.has_perm(permission):
        raise PermissionDenied(f"{name_of(actor)} lacks the permission {permission}")
    if permission not in LIMITED and scope_of(actor) is not None:
        raise PermissionDenied(f"{name_of(actor)} may act on some queues and job types only")
    if problem := reason_problem(reason):
        raise OperationRefused(problem)


def name_of(actor: Actor) -> str:
    """The name of ``actor``; empty for None."""
    if actor is None:
        return ""
    return actor.get_username() if isinstance(actor, AbstractBaseUser) else str(actor)


def signed(operation: str, by: str, reason: str) -> str:
    """``skipped by ada: not needed``."""
    done = f"{operation} by {by}" if by else operation
    return f"{done}: {reason}" if reason else done
