"""Signals of jobs: named data from outside, for which a handler can wait."""

from __future__ import annotations

import logging
from typing import Any

from django.db import transaction
from django.db.models import Func, IntegerField
from django.utils.translation import gettext_noop

from ...conf import conf
from ...domain.payload import NotStorable, encode, key_problem
from ...domain.states import FINAL
from ...domain.workflows import SLEEP, WAIT
from ...exceptions import PayloadError
from ...models import Job
from ...models.database import fetch, jobs_connection, repeat_conflicts
from ..job_columns import AT_THE_GATES
from ..notifying import emit_after_commit, notify_after_commit
from ..waits import SIGNAL_KEY
from . import OperationResult
from .jobs import Actor, demand, name_of

PAYLOADS = 4
"""All signals of a job have at most the bytes of this many payloads. Each signal, claim and settle
writes them with the row; a settle that took longer than three seconds, with 200 MB, was cut off
again and again."""

MOST_NAMED = 20
"""Signals that an error names."""

AWAITED = "job.status = 'waiting' AND job.awaits = %(name)s"

# First, so that the signal sees the note of an attempt that has waited in vain: that locks the job
# too. So does a settle that makes the job wait, and looks at the signals. Of two at once the second
# sees what the first wrote.
LOCK = """
SELECT coalesce(octet_length(signals::text), 0) FROM django_jobs_job_live
WHERE id = %(id)s FOR NO KEY UPDATE
"""
SIGNAL = f"""
UPDATE django_jobs_job_live AS job SET
    signals = coalesce(job.signals, '{{}}') || jsonb_build_object(%(name)s::text, %(data)s::jsonb),
    status = CASE WHEN {AWAITED} THEN {AT_THE_GATES} ELSE job.status END,
    awaits = CASE WHEN {AWAITED} THEN NULL ELSE job.awaits END,
    available_at = CASE WHEN {AWAITED} THEN clock.now ELSE job.available_at END,
    rank = CASE WHEN {AWAITED}
                THEN job.rank + date_part('epoch', clock.now) - date_part('epoch', job.available_at)
                ELSE job.rank END
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = %(id)s AND job.status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
  AND NOT coalesce(jsonb_exists(job.signals, %(name)s), false)
  AND NOT (job.job_type = '{SLEEP}'
           OR job.job_type = '{WAIT}' AND job.payload ->> 'name' <> %(name)s)
  AND NOT EXISTS (
      SELECT 1 FROM django_jobs_receipt AS receipt
      WHERE receipt.job_id = job.id AND receipt.key = %(key)s
        AND jsonb_exists(receipt.answer, 'over'))
RETURNING job.queue, job.workflow_run_id, job.step
"""

BYTES: Func = Func(
    "signals", template="octet_length(%(expressions)s::text)", output_field=IntegerField()
)


def signal(
    id_: int, name: str, data: Any = None, *, actor: Actor = None, by: str = "", reason: str = ""
) -> OperationResult:
    """Send a job the signal ``name`` with ``data``, in the caller's transaction.

    It is kept until the handler waits for it; a job that waits already becomes ready. A job keeps
    the first signal of each name, so a second one is refused. So is one for a job that has ended,
    or whose handler has waited for it in vain, and another name than that of a ``wait`` step. Of a
    step of a workflow, the event ``step_signalled`` is sent after the commit; a ``wait`` step can
    demand a permission besides.

    Raises ``ValueError`` if ``name`` is not text of 1 to 200 characters, :class:`PayloadError` if
    ``data`` is not JSON or too large, alone or with the signals that the job has.
    """
    demand(actor, "django_jobs.signal_workflowrun", reason)
    demand_of_step(actor, id_, name)
    if problem := key_problem(name, "the name of a signal", "name"):
        raise ValueError(problem)
    try:
        text = encode(data, max_bytes=conf().max_payload_bytes, name="data")
    except NotStorable as error:
        raise PayloadError(f"the signal {name!r}: {error}") from None
    room = PAYLOADS * conf().max_payload_bytes - len(text.encode())
    stored = _store({"id": id_, "name": name, "data": text, "key": SIGNAL_KEY + name}, room)
    if not stored:
        return OperationResult(refused={id_: _why_refused(id_, name, room)})
    for run, step in stored:
        if run is not None:
            who = {"by": name_of(actor) or by, "reason": reason}
            emit_after_commit("step_signalled", logging.INFO, run=run, step=step, **who)
    return OperationResult(done=[id_])


@repeat_conflicts
def _store(parameters: dict[str, Any], room: int) -> list[tuple[int | None, str | None]]:
    """The run and the step of the job, if it has the signal now. It has not if those before take
    more than ``room``."""
    with transaction.atomic(using=jobs_connection().alias):
        if any(size > room for (size,) in fetch(LOCK, parameters)):
            return []
        rows = fetch(SIGNAL, parameters)
        for queue, _, _ in rows:
            notify_after_commit(queue)
    return [(run, step) for _, run, step in rows]


def demand_of_step(actor: Actor, id_: int, signal: str | None = None) -> None:
    """Demand the permission with which a ``wait`` step was declared, if the job is one and the
    ``signal``, if there is one, is the one that it waits for."""
    if actor is None:
        return
    jobs = Job.objects.using(conf().database).filter(pk=id_, workflow_run__isnull=False)
    for step, graph in jobs.values_list("step", "workflow_run__definition__graph"):
        for declared in (graph or {}).get("steps", ()):
            if declared["name"] != step or signal not in (None, step):
                continue
            if declared.get("permission"):
                demand(actor, declared["permission"])


def _why_refused(id_: int, name: str, room: int) -> str:
    """Why a job has no such signal. Raises :class:`PayloadError` if its own exceed ``room``."""
    rows = Job.objects.using(conf().database).filter(pk=id_)
    columns = rows.values_list("status", "signals", "job_type", "payload__name", BYTES)
    for status, signals, job_type, awaited, size in columns:
        if status in FINAL:
            return f"it is {status}"
        if job_type == SLEEP:
            return gettext_noop("it waits for no signal")
        if job_type == WAIT and awaited != name:
            return f"it waits for the signal {awaited!r} alone"
        if name in (signals or ()):
            return gettext_noop("it has a signal of this name already")
        if (size or 0) > room:
            names = ", ".join(sorted(signals)[:MOST_NAMED])
            raise PayloadError(
                f"the signal {name!r}: with it, the signals of job {id_} would be larger than "
                f"{PAYLOADS} times MAX_PAYLOAD_BYTES; it has {names}"
                f"{', ...' if len(signals) > MOST_NAMED else ''}"
            )
        return gettext_noop("it has waited for this signal, and the time is over")
    return gettext_noop("there is no such job")
