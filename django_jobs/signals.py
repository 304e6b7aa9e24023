"""Signals for the project. All are sent with ``send_robust``: a receiver that raises harms no job.

``job_enqueued`` is sent in the caller's transaction, after the insert. The others are sent by the
worker after its transaction has committed.
"""

from __future__ import annotations

from django.dispatch import Signal

job_enqueued = Signal()
"""Sender: the job type's name. Keyword: ``job`` (a :class:`~django_jobs.models.Job`)."""

job_started = Signal()
"""Sender: the job type's name. Keywords: ``job_id``, ``queue``, ``attempt``. Sent in the thread of
the handler."""

job_finished = Signal()
"""Sender: the job type's name. Keywords: ``job_id``, ``queue``, ``attempt``, ``status`` (of the
job), ``outcome`` (of the run), ``seconds`` (run time), ``error`` (one line, or empty),
``reason`` (why the job is dead or cancelled, or empty), ``traceback`` (of the error, or empty)."""

attempt_failed = Signal()
"""An attempt ended otherwise than in success. Keywords as :data:`job_finished`, which is sent for
it too; a project that asks for failures only costs its successes nothing by listening here."""

job_dead = Signal()
"""The job went to the dead letters. Keywords as :data:`job_finished`."""

worker_event = Signal()
"""Something happened to a worker process. Sender: the event's name, such as ``worker_started``.
Keywords: ``level`` (of :mod:`logging`) and ``fields`` (a dict)."""
