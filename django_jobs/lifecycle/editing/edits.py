"""scheduled, blocked, ready -> the same or one of them, and dead -> live: a person edits a job.

Its row is locked from the look at it to the write, so a claim passes it over, and what the edit
was computed from is what it changes. A dead job is changed first, and then replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db import DataError, IntegrityError, transaction
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext_noop

from ...domain.errors import ErrorReport
from ...domain.gates import Gates
from ...domain.payload import encode
from ...domain.states import JobState
from ...domain.workflows import WAIT
from ...exceptions import OperationRefused
from ...models import Job
from ...models.database import execute, fetch, jobs_connection, repeat_conflicts
from ...models.job import QUARANTINED
from ..job_columns import gate_values
from ..notifying import BLOCKED, notify_after_commit
from ..operations import OperationResult
from ..operations.jobs import Actor, demand, name_of, replay_one
from ..operations.signals import demand_of_step
from ..scope import OUTSIDE, Scope, scope_of
from ..waits import WAKE

MOST_EDITS = 20
"""Edits that the headers of a job remember: the latest."""
MOST_KEPT = 10_000
"""Bytes of a payload that the headers keep as it was before an edit."""

EDITABLE = (JobState.SCHEDULED, JobState.BLOCKED, JobState.READY, JobState.DEAD)

CHANGED_MEANWHILE = gettext_noop("it was changed meanwhile")

# ``state`` is the same as long as nothing changed that an edit can change.
STATE = """md5(concat_ws('|', job.status = 'dead', job.queue, job.priority,
    date_part('epoch', job.available_at), job.payload_version, job.payload::text))"""
LOOK = f"""
SELECT job.id, job.status, job.job_type, job.queue, job.priority, job.payload::text,
    job.payload_version, job.gates, job.workflow_run_id, job.idempotency_key,
    jsonb_typeof(job.headers), job.at_most_once, date_part('epoch', job.available_at),
    date_part('epoch', job.expires_at), {STATE}
FROM django_jobs_job_live AS job WHERE job.id = %(id)s
"""
LOCK = f"{LOOK}FOR NO KEY UPDATE"

DUE = "coalesce(%(run_at)s::timestamptz, job.available_at)"
RECORDED = f"""jsonb_set(job.headers, '{{edits}}', jsonb_path_query_array(
        CASE jsonb_typeof(job.headers -> 'edits') WHEN 'array' THEN job.headers -> 'edits'
             ELSE '[]' END
        || jsonb_build_object('at', clock.now, 'by', %(by)s::text, 'why', %(why)s::text,
            'changed', %(changed)s::jsonb, 'before', %(before)s::jsonb,
            'after', %(after)s::jsonb, 'after_attempt', job.attempt),
        '$[last - {MOST_EDITS - 1} to last]'))"""

# A ready job whose gates stay the same keeps its slots. One with other gates waits for those.
EDIT = f"""
UPDATE django_jobs_job_live AS job SET
    payload = coalesce(%(payload)s::jsonb, job.payload),
    payload_version = coalesce(%(payload_version)s, job.payload_version),
    queue = %(queue)s, priority = %(priority)s,
    tenant = %(tenant)s, concurrency_key = %(concurrency_key)s, resources = %(resources)s::jsonb,
    gates = %(gates)s, available_at = {DUE},
    retry_until = CASE WHEN %(run_at)s::timestamptz IS NULL THEN job.retry_until END,
    rank = date_part('epoch', {DUE}) - %(priority)s * %(weight)s::float8,
    status = CASE
        WHEN job.status = 'dead' THEN 'dead'
        WHEN {DUE} > clock.now THEN 'scheduled'
        WHEN job.status = 'blocked' AND job.reason = '{QUARANTINED}' THEN 'blocked'
        WHEN %(gates)s::text IS NULL THEN 'ready'
        WHEN job.status = 'ready' AND job.gates = %(gates)s THEN 'ready'
        ELSE 'blocked' END,
    reason = CASE WHEN job.reason = '{QUARANTINED}' AND {DUE} > clock.now THEN ''
                  ELSE job.reason END,
    headers = {RECORDED}
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = %(id)s AND job.status IN ('scheduled', 'blocked', 'ready', 'dead')
RETURNING job.status
"""
POSTPONE = """
UPDATE django_jobs_job_live AS job SET status = 'scheduled', available_at = %(run_at)s,
    retry_until = NULL,
    rank = date_part('epoch', %(run_at)s::timestamptz) - job.priority * %(weight)s::float8
WHERE job.id = %(id)s AND job.status IN ('blocked', 'ready')
  AND %(run_at)s::timestamptz > clock_timestamp()
"""

# The key of ``unique_for`` goes with its job. An expired one in the other queue is in nobody's way.
DROP_EXPIRED_KEY = """
DELETE FROM django_jobs_uniquekey
WHERE queue = %(queue)s AND key = %(key)s AND expires_at <= clock_timestamp()
"""
MOVE_KEY = """
UPDATE django_jobs_uniquekey SET queue = %(queue)s
WHERE queue = %(old)s AND key = %(key)s AND job_id = %(id)s
"""


class StoredJob(NamedTuple):
    """A job as it is stored. Times are in epoch seconds. ``state`` changes with all that an edit
    can change; ``headers`` is the type of their JSON."""

    id: int
    status: str
    job_type: str
    queue: str
    priority: int
    payload: str
    payload_version: int
    gates: str | None
    workflow_run_id: int | None
    idempotency_key: str | None
    headers: str
    at_most_once: bool
    available_at: float
    expires_at: float | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """What a job is to be. Of ``payload``, JSON text, and ``run_at`` None keeps what is stored.
    ``changed`` are the names of what the edit changes."""

    changed: Sequence[str]
    queue: str
    weight: float
    priority: int
    gates: Gates | None
    payload: str | None = None
    payload_version: int | None = None
    run_at: datetime | None = None


def stored_job(id_: int) -> StoredJob | None:
    """The job as an edit would find it; None unless it is live or dead."""
    rows = fetch(LOOK, {"id": id_})
    return _stored(rows[0]) if rows else None


def _stored(row: tuple[Any, ...]) -> StoredJob:
    stored = StoredJob._make(row)
    # Pages send the state to people who may not see the payload, and who could try out what gives
    # the same hash.
    keyed = salted_hmac("django_jobs.lifecycle.editing", stored.state, algorithm="sha256")
    return stored._replace(state=keyed.hexdigest())


def edit(
    id_: int,
    prepare: Callable[[StoredJob], Edited],
    *,
    check: Callable[[Job], str | None],
    actor: Actor = None,
    by: str = "",
    reason: str = "",
    state: str | None = None,
) -> OperationResult:
    """Change a job that has not started, or change a dead one and replay it.

    ``prepare`` is called with the locked job and returns what it is to be; what it raises leaves
    the job alone. ``check`` is that of a replay. If ``state`` is given, a job that has another one
    is refused. Who, when, why, and what was changed from which value are stored in the headers
    under ``edits``; without an actor, ``by`` is who.

    Raises ``PermissionDenied`` if ``actor`` may not edit the job, replay it if it is dead, see the
    payload that it would change, or signal the ``wait`` step whose payload that is.
    """
    demand(actor, "django_jobs.edit_job", reason)
    who = name_of(actor) or by
    try:
        _edit(id_, prepare, check, actor, who, reason, state)
    except OperationRefused as refused:
        return OperationResult(refused={id_: str(refused)})
    return OperationResult(done=[id_])


@repeat_conflicts
def _edit(
    id_: int,
    prepare: Callable[[StoredJob], Edited],
    check: Callable[[Job], str | None],
    actor: Actor,
    who: str,
    why: str,
    state: str | None,
) -> None:
    alias, scope = jobs_connection().alias, scope_of(actor) or Scope()
    with transaction.atomic(using=alias):
        stored = _locked(id_, alias, scope)
        if stored.status == JobState.DEAD:
            demand(actor, "django_jobs.replay_job")
        if state is not None and stored.state != state:
            raise OperationRefused(CHANGED_MEANWHILE)
        edited = prepare(stored)
        if not scope.has(edited.queue, stored.job_type):
            raise OperationRefused(OUTSIDE)
        if "payload" in edited.changed:
            demand(actor, "django_jobs.view_job_payload")
            if stored.job_type == WAIT:  # its payload says what happens without a signal
                demand_of_step(actor, id_)
        if problem := _problem(stored, edited):
            raise OperationRefused(problem)
        status = _write(id_, stored, edited, who, why, scope)
        if status == JobState.DEAD:
            _replay(id_, edited, check, who, why, scope)
        hint = BLOCKED if edited.gates is not None else ""
        notify_after_commit(hint + edited.queue)


def _locked(id_: int, alias: str, scope: Scope) -> StoredJob:
    rows = fetch(LOCK, {"id": id_})
    ended = Job.objects.using(alias).filter(pk=id_).only("status", "queue", "job_type")
    found = _stored(rows[0]) if rows else ended.first()
    if found is None:
        raise OperationRefused(gettext_noop("there is no such job"))
    if not scope.has(found.queue, found.job_type):
        raise OperationRefused(OUTSIDE)
    if isinstance(found, Job) or found.status not in EDITABLE:
        raise OperationRefused(f"it is {found.status}")
    return found


def _problem(stored: StoredJob, edited: Edited) -> str | None:
    if stored.headers != "object":  # a row that was not written by enqueue
        return f"its headers are JSON of type {stored.headers}: nowhere to note the edit"
    if edited.run_at is None or stored.status == JobState.DEAD:
        is_step = stored.workflow_run_id is not None and edited.run_at is not None
        return gettext_noop("its workflow run decides when the step is due") if is_step else None
    if stored.expires_at is not None and edited.run_at.timestamp() >= stored.expires_at:
        return gettext_noop("it expires before that time")
    return None


def _recorded(stored: StoredJob, edited: Edited) -> dict[str, str]:
    """What was changed, with the values before and after, as JSON. The payload after is that of the
    job, or that before its next edit."""
    due = None if edited.run_at is None else edited.run_at.isoformat()
    before = {
        "payload": _kept(stored.payload),
        "queue": stored.queue,
        "priority": stored.priority,
        "due": _moment(stored.available_at),
    }
    after = {"queue": edited.queue, "priority": edited.priority, "due": due}
    values: dict[str, Any] = {"changed": list(edited.changed)}
    for key, named in (("before", before), ("after", after)):
        values[key] = {name: named[name] for name in edited.changed if name in named}
    return {key: json.dumps(value) for key, value in values.items()}


def _kept(payload: str) -> Any:
    """A payload that is small, and that an enqueue would have stored; None for others, because the
    worker reads the headers."""
    try:
        value = json.loads(payload)
        encode(value, max_bytes=MOST_KEPT)
    except (ValueError, RecursionError):
        return None
    return value


def _moment(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # a row that enqueue did not write
        return None


def _write(id_: int, stored: StoredJob, edited: Edited, who: str, why: str, scope: Scope) -> str:
    parameters = {
        **gate_values(edited.gates),
        "id": id_,
        "by": who,
        "why": why,
        **_recorded(stored, edited),
        "queue": edited.queue,
        "weight": edited.weight,
        "priority": edited.priority,
        "payload": edited.payload,
        "payload_version": edited.payload_version,
        "run_at": edited.run_at,
    }
    alias = jobs_connection().alias
    try:
        with transaction.atomic(using=alias):  # a savepoint: the holder is looked up afterwards
            if edited.run_at is not None:
                execute(WAKE, {"ids": [id_], "run_at": edited.run_at})
            ((status,),) = fetch(EDIT, parameters)
            if stored.idempotency_key and edited.queue != stored.queue:
                key = {"key": stored.idempotency_key, "old": stored.queue}
                execute(DROP_EXPIRED_KEY, {**parameters, **key})
                execute(MOVE_KEY, {**parameters, **key})
    except IntegrityError:
        key_held = stored.idempotency_key or ""
        holders = Job.objects.using(alias).holding_key(edited.queue, key_held)
        holder = holders.filter(scope.of(queue="queue", job_type="job_type")).first()
        name = f"job {holder.pk}" if holder else "another job"
        raise OperationRefused(f"{name} holds its key in the queue {edited.queue}") from None
    except DataError as error:
        raise OperationRefused(f"PostgreSQL refuses it: {ErrorReport.of(error).summary}") from None
    return str(status)


def _replay(
    id_: int, edited: Edited, check: Callable[[Job], str | None], who: str, why: str, scope: Scope
) -> None:
    alias = jobs_connection().alias
    job = Job.objects.using(alias).get(pk=id_)
    problem = check(job) or replay_one(job, who, why, alias, scope)
    if problem is not None:
        raise OperationRefused(problem)
    if edited.run_at is not None:
        fetch(
            f"{POSTPONE} RETURNING job.id",
            {"id": id_, "run_at": edited.run_at, "weight": edited.weight},
        )
