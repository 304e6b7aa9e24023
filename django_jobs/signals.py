"""Signals for the project. All but ``pre_prune_dead`` are sent with ``send_robust``, so a receiver
that raises does not affect the job. One that exits (``sys.exit()``) has its attempt fail, if that
has not ended.

``job_enqueued`` is sent in the caller's transaction, after the insert; ``pre_prune_dead`` in the
transaction that deletes, before it does. The others are sent by the worker after its transaction
has committed.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("django.dispatch")


class WorkerSignal(Signal):
    """A signal of what has happened already. ``sys.exit()`` in a receiver, which Django passes on,
    is logged as any other exception: it would end a thread of the worker, or a whole process."""

    def send_robust(self, sender: Any, **named: Any) -> list[Any]:
        """Send it. Receivers after the one that exits are not called."""
        try:
            return list(super().send_robust(sender, **named))
        except (SystemExit, KeyboardInterrupt):
            logger.exception("A receiver of a signal from %s exits", sender)
            return []


job_enqueued = Signal()
"""A job was enqueued by ``enqueue``. Not sent by ``enqueue_many``, nor for a deduplicated job
or one that its full queue dropped at once.

Sender: the name of the job type. Keyword: ``job``, the :class:`~django_jobs.models.Job`."""

job_started = Signal()
"""An attempt starts. Sent in the handler's thread, before the handler is called.

Sender: the name of the job type. Keywords: ``job_id``, ``queue``, ``attempt``."""

job_finished = WorkerSignal()
"""An attempt ended, with any outcome.

Sender: the name of the job type. Keywords: ``job_id``, ``queue``, ``attempt``, ``status`` (of the
job), ``outcome`` (of the run), ``seconds`` (the run time, or None if the handler never started),
``error`` (one line, or empty), ``error_code`` (such as ``503``, or empty), ``reason`` (why the job
is dead or cancelled, or empty), ``traceback`` (of the error, or empty), ``exception`` (what the
handler raised; None if it succeeded, was killed or lost, or chose to be snoozed or cancelled),
``trace_id`` and ``span_id`` (empty without a trace)."""

attempt_failed = WorkerSignal()
"""An attempt ended with any outcome but success. Sent in addition to :data:`job_finished`, with the
same keywords. A receiver of this signal only costs nothing for jobs that succeed."""

job_dead = WorkerSignal()
"""A job is dead. Sent in addition to :data:`job_finished`, with the same keywords."""

workflow_finished = WorkerSignal()
"""A run of a workflow ended.

Sender: the name of the workflow. Keywords: ``run_id``, ``status`` (``"succeeded"``, ``"failed"`` or
``"cancelled"``) and ``reason`` (which steps failed, or why it was cancelled; may be empty)."""

pre_prune_dead = Signal()
"""Dead jobs are about to be deleted. Sent in the transaction that deletes them, which has locked
them. If a receiver raises, they are kept; the next run of retention tries again.

Sender: the name of the job type. Keywords: ``job_ids`` (a list), ``queue``, ``reason`` (the limit
that they exceed: ``"age"`` or ``"number"``)."""

queue_pressure_changed = WorkerSignal()
"""The pressure of a queue with a ``max_backlog`` reached another level. Sent by one of the workers,
which look every ``SWEEP_SECONDS``.

Sender: the name of the queue. Keywords: ``queue``, ``level`` (``"ok"``, ``"high"`` or ``"full"``),
``previous`` (the level before) and ``pressure`` (a :class:`~django_jobs.Pressure`)."""

resource_pressure_changed = WorkerSignal()
"""The same of a resource with a ``max_waiting``.

Sender: the name of the resource. Keywords: ``resource``, ``level``, ``previous`` and ``pressure``
(a :class:`~django_jobs.ResourcePressure`)."""

process_started = WorkerSignal()
"""A process of ``jobworker`` has started. Connections that receivers open are closed after it.

Sender: ``"jobworker"``, the command, before it starts the others; ``"worker"``, a process that runs
jobs, before the first one; ``"isolated"``, the process of one attempt. Keyword: ``pid``."""

process_ended = WorkerSignal()
"""A process of ``jobworker`` has nothing left to do and ends; not sent in one that is killed.

Senders as of :data:`process_started`. Keyword: ``pid``."""

worker_event = WorkerSignal()
"""An event of a worker.

Sender: the name of the event, such as ``worker_started``. Keywords: ``level`` (a level of
:mod:`logging`) and ``fields`` (a dict)."""


def emit(event: str, level: int, /, **fields: Any) -> None:
    """Send :data:`worker_event`."""
    worker_event.send_robust(event, level=level, fields=fields)
