"""The declared Tasks of this process, by module path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import registry
from .arguments import Arguments
from .interface import Task

if TYPE_CHECKING:
    from ..api.job_type import JobType

POSITIONAL = "task_args"
"""The header of a job with the number of named arguments that had been given by position."""


@dataclass(slots=True)
class Declared:
    """A declared Task, the options of its backend, and its job type."""

    task: Task[..., Any]
    options: Mapping[str, Any]
    arguments: Arguments
    job_type: JobType[..., Any] | None = None
    by_count: dict[int, JobType[..., Any]] = field(default_factory=dict)

    def request(self, count: int) -> JobType[..., Any]:
        """Its job type for a request with ``count`` named arguments by position. It is kept: the
        job type remembers what it has looked up."""
        assert self.job_type is not None
        if not count:
            return self.job_type
        if count not in self.by_count:
            self.by_count[count] = self.job_type.using(headers={POSITIONAL: count})
        return self.by_count[count]


_tasks: dict[str, Declared] = {}


def add(declared: Declared) -> None:
    """Keep a declared Task. It replaces one with the same path, of a module that was reloaded."""
    _tasks[declared.task.module_path] = declared


def find(name: str) -> Declared | None:
    """The declared Task whose job type has this name or alias, or None."""
    if (found := _tasks.get(name)) is not None:
        return found
    job_type = registry.find(name)
    return None if job_type is None else _tasks.get(job_type.name)


def forget(name: str) -> None:
    """Remove a declared Task and its job type."""
    _tasks.pop(name, None)
    registry.unregister(name)


def forget_module(module: str) -> None:
    """:func:`forget` the Tasks of a module. For tests that declare some."""
    for name in [name for name in _tasks if name.rpartition(".")[0] == module]:
        forget(name)
