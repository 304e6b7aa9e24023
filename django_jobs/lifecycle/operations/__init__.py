"""What operators ask for. Each operation checks the actor's permission where its statement is,
and raises ``PermissionDenied`` without it. If there is no actor, ``by`` is who asked.

jobs         cancel, reprioritize, run now, replay; pause and resume queues; drain workers
inspections  ask running jobs for their stack
schedules    pause, resume, run now, backfill
quarantines  block and unblock job types
workflows    cancel and retry runs; skip a step, or send it a signal
signals      send a job the data for which its handler waits
bulk         what is asked for all jobs that match, and the jobs of its next chunk
limits       pause and resume resources and tenants; open and close breakers
dead_letters dismiss dead jobs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(slots=True)
class OperationResult:
    """The result of an operation: the ids it changed, and a reason for each left alone. ``asked``
    are the changed jobs that keep running until they stop by themselves, and ``made`` new ones."""

    done: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)


def later(path: str) -> Callable[..., Any]:
    """An operation by its module and name, such as ``jobs.cancel``, for the tables of the admin's
    actions. Its module, and all that it needs, is imported by the first call."""
    module, name = path.split(".")

    def call(*args: Any, **options: Any) -> Any:
        return getattr(import_module(f"{__name__}.{module}"), name)(*args, **options)

    return call
