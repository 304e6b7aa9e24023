"""Start a run of a workflow: its row, its steps and what each waits for, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import transaction

from ...conf import conf
from ...exceptions import EnqueueError
from ...models import WorkflowRun
from ...models.database import fetch, jobs_connection
from ..backlog import drop_above_limits, drops_lowest
from ..bulk_insert import not_written, rows_dropped
from ..enqueueing import KEY_ATTEMPTS
from ..job_columns import NOW
from ..step_insert import NewStep, ends_among, first_among, insert_steps

RUN_TABLE = "django_jobs_workflowrun"
INSERT_RUN = f"""
INSERT INTO {RUN_TABLE} (
    definition_id, name, status, payload, idempotency_key, tenant, ends_left, compensations,
    on_failure, started_at)
VALUES (
    %(definition)s, %(name)s, 'running', %(payload)s::jsonb, %(key)s, %(tenant)s, %(ends)s,
    %(compensations)s::jsonb, %(on_failure)s, {NOW})
ON CONFLICT (name, idempotency_key) WHERE idempotency_key IS NOT NULL AND status = 'running'
    DO NOTHING
RETURNING id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to start. ``payload`` and ``compensations`` are JSON text; the latter is made by
    :func:`~django_jobs.lifecycle.compensating.as_json`. With ``on_failure="cancel"`` the first dead
    step cancels the others."""

    name: str
    definition: int | None = None
    payload: str = "{}"
    idempotency_key: str | None = None
    tenant: str | None = None
    compensations: str | None = None
    on_failure: str = "continue"


def start(
    new: NewRun, steps: Sequence[NewStep], definition: Callable[[], int | None] | None = None
) -> WorkflowRun:
    """Insert a run with its steps, in the caller's transaction, or in a new one. ``definition`` is
    called in it, and returns what takes the place of ``new.definition``.

    A full queue that drops its lowest jobs does it for the first steps, and these may be among
    them. Returns the running run of this name that holds the idempotency key, marked as
    ``deduplicated``, if there is one.
    """
    if not steps:
        raise EnqueueError(f"{new.name}: a run needs at least one step")
    parameters = {
        "name": new.name,
        "payload": new.payload,
        "key": new.idempotency_key,
        "tenant": new.tenant,
        "ends": ends_among(steps),
        "compensations": new.compensations,
        "on_failure": new.on_failure,
    }
    runs = WorkflowRun.objects.using(conf().database)
    with transaction.atomic(using=jobs_connection().alias):
        parameters["definition"] = new.definition if definition is None else definition()
        for _ in range(KEY_ATTEMPTS):
            for (id_,) in fetch(INSERT_RUN, parameters):
                insert_steps(id_, steps)
                for request, gates in first_among(steps):
                    if drops_lowest(request):
                        drop_above_limits(request, gates)
                return runs.get(pk=id_)
            if new.idempotency_key is None:
                raise rows_dropped(table=RUN_TABLE)
            holder = runs.filter(
                name=new.name, idempotency_key=new.idempotency_key, status="running"
            ).first()
            if holder is not None:
                holder.deduplicated = True
                return holder
    raise not_written(f"{new.name}: the key {new.idempotency_key!r}", RUN_TABLE)
