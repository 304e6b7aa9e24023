"""Prints the events of a worker as sentences instead of ``key=value`` lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import connections

from ... import __version__, logs, registry
from ...conf import conf
from ...domain.errors import cut
from ...domain.states import JobState, RunState
from ...signals import attempt_failed, job_dead, job_finished, worker_event
from ...worker.options import Options
from ..base import counted

LONGEST_TRACEBACK = 3_000
"""Characters. A line and its traceback then fit into 4,096 bytes, which a pipe that is not full
accepts without blocking the worker."""

SENTENCES = {
    "supervisor_started": "Started. Ctrl-C lets running jobs end; a second Ctrl-C stops at once.",
    "worker_started": "Process {pid} is ready.",
    "worker_stopped": "A worker process has stopped. Jobs run: {ended}.",
    "draining": "Stopping: running jobs get {timeout:g} s to end. Ctrl-C again stops at once.",
    "second_signal": "Stopping at once. Running jobs are released and will run again.",
    "supervisor_stopped": "Stopped.",
    "no_fork": "One process without fork: {cannot}. Not run here: {not_claimed}.",
    "no_job_types": "No job type is known: {hint}",
    "job_type_by_chance": "{job_type} is known only by chance: {hint}",
    "unknown_job_type": "No worker knows {job_type}, of which {jobs} jobs are ready: {hint}",
    "code_changed": "Changed since this worker started: {files}. Restart it to run the new code.",
}


def connect(level: int, choice: str) -> bool:
    """Log the worker's events. Returns whether they are logged as sentences.

    ``auto`` logs sentences at a terminal and if ``DEBUG`` is on. If the project's ``LOGGING`` has a
    handler for the logger ``django_jobs``, that handler is used instead. With ``DEBUG`` and without
    ``LOGGING``, what handlers log from ``INFO`` on is shown too.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    for_people = choice == "human" or (choice == "auto" and (is_terminal or settings.DEBUG))
    formatter = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S") if for_people else None
    if choice == "json":
        formatter = logs.JsonFormatter()
    if not logs.to_stderr(level, formatter) or not for_people:
        logs.connect(level)
        return False
    if settings.DEBUG and not settings.LOGGING:
        logs.show_jobs(formatter)
    # A receiver of successes costs time for every job, even if nothing is logged.
    ended = job_finished if level <= logging.INFO else attempt_failed
    ended.connect(show_attempt, dispatch_uid=logs.CONNECTED)
    job_dead.connect(show_dead, dispatch_uid=logs.CONNECTED)
    worker_event.connect(show_worker_event, dispatch_uid=logs.CONNECTED)
    return True


def greeting(options: Options) -> str:
    database = connections[conf().database].settings_dict.get("NAME") or conf().database
    processes = "1 process" if options.processes == 1 else f"{options.processes} processes"
    return "\n".join(
        (
            f"django_jobs {__version__}: {processes} with {counted(options.threads, 'thread')}",
            f"Database: {database}",
            f"Pools: {' '.join(map(str, options.named_pools))}"
            if options.named_pools
            else f"Queues: {', '.join(share.name for share in options.queues)}",
            "Job types:",
            *(f"  {name}" for name in registry.names() or ["none"]),
        )
    )


def show_attempt(sender: str, **fields: Any) -> None:
    """``job_finished`` or ``attempt_failed``: one line, and the traceback of a failure."""
    traceback = cut(fields["traceback"], LONGEST_TRACEBACK).splitlines()
    _show(logs.level_of(fields["outcome"]), _of_attempt(sender, fields), *traceback)


def show_dead(sender: str, **fields: Any) -> None:
    """``job_dead``: the reason. The traceback was shown with the attempt."""
    _show(logging.ERROR, f"{sender} #{fields['job_id']} is dead: {fields['reason']}")


def show_worker_event(sender: str, *, level: int, fields: dict[str, Any], **others: Any) -> None:
    _show(level, sentence(sender, fields))


def sentence(event: str, fields: Mapping[str, Any]) -> str:
    try:
        return SENTENCES[event].format_map(fields)
    except KeyError:  # an event without a sentence, or with other fields
        details = logs.line(event, dict(fields)).partition(" ")[2]
        words = event.replace("_", " ").capitalize()
        return f"{words}: {details}" if details else words


def _of_attempt(job_type: str, fields: Mapping[str, Any]) -> str:
    text = f"{job_type} #{fields['job_id']} {fields['outcome'].replace('_', ' ')}"
    if fields["seconds"] is not None:
        text += f" in {fields['seconds']:.2f} s"
    if fields["outcome"] == RunState.SUCCEEDED:
        return text
    again = fields["status"] in (JobState.SCHEDULED, JobState.READY)
    text += f" (attempt {fields['attempt']}{', runs again' if again else ''})"
    why = fields["error"] or fields["reason"]
    return f"{text}: {why}" if why else text


def _show(level: int, text: str, *more: str) -> None:
    if logs.logger.isEnabledFor(level):
        prefix = f"{logging.getLevelName(level)} " if level >= logging.WARNING else ""
        lines = [prefix + logs.printable(text), *(f"    {logs.printable(line)}" for line in more)]
        logs.logger.log(level, "%s", "\n".join(lines))
