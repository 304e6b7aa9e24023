"""The declared Tasks of this process, by module path, and their arguments, stored by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import registry
from ..exceptions import PayloadError
from .interface import Task

if TYPE_CHECKING:
    from ..api.job_type import JobType


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parameters of a Task's function, without its context.

    A payload holds arguments by name. Values for ``*args`` are a list under that name.
    """

    signature: inspect.Signature
    """As that of a handler: each parameter can be given by name."""
    defaults: Mapping[str, Any]
    """The parameters that can be given by position, with their defaults."""
    by_position: frozenset[str]
    """Those that can be given by position only."""
    rest: str | None
    """The name of ``*args``."""

    @classmethod
    def of(cls, function: Callable[..., Any], *, takes_context: bool) -> Arguments:
        kept = list(inspect.signature(function).parameters.values())[takes_context:]
        positional = [
            one for one in kept if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        return cls(
            signature=inspect.Signature([_named(one) for one in kept]),
            defaults={one.name: one.default for one in positional},
            by_position=frozenset(one.name for one in kept if one.kind is one.POSITIONAL_ONLY),
            rest=next((one.name for one in kept if one.kind is one.VAR_POSITIONAL), None),
        )

    @property
    def _are_plain(self) -> bool:
        return self.rest is None and not self.by_position

    def named(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], where: str
    ) -> dict[str, Any] | None:
        """All of them by name; None if the signature binds them as they are.

        Raises :class:`PayloadError` for a name that stands for arguments by position.
        """
        if self._are_plain:
            return None
        names = list(self.defaults)
        named = dict(zip(names, args, strict=False))
        if rest := args[len(names) :]:
            if self.rest is None:
                raise PayloadError(
                    f"{where} takes {len(names)} arguments by position, not {len(args)}"
                )
            named[self.rest] = list(rest)
        for name in kwargs:
            if name in named or name == self.rest:
                raise PayloadError(
                    f"{where}: the argument {name!r} is given twice, by position and by name"
                )
        return named | dict(kwargs)

    def for_call(self, payload: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments by position and by name with which to call the function."""
        if self._are_plain:
            return [], dict(payload)
        by_name = dict(payload)
        rest = by_name.pop(self.rest, []) if self.rest else []
        names = list(self.defaults)
        if not rest:  # up to the last one that cannot be given by name
            given = [
                at for at, name in enumerate(names) if name in self.by_position & payload.keys()
            ]
            names = names[: given[-1] + 1] if given else []
        args = [by_name.pop(name, self.defaults[name]) for name in names]
        return [*args, *rest], by_name

    def as_given(self, payload: Mapping[str, Any], count: int) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the request, of which ``count`` named ones were given by position."""
        by_name = dict(payload)
        rest = by_name.pop(self.rest, []) if self.rest else []
        names = list(self.defaults)[: len(self.defaults) if rest else count]
        return [*(by_name.pop(name) for name in names if name in by_name), *rest], by_name

    def count(self, args: Sequence[Any]) -> int:
        """How many of the named ones are given by position."""
        return min(len(args), len(self.defaults))


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD)
    if parameter.kind is parameter.VAR_POSITIONAL:
        # The annotation is of each value, and the payload has a list of them.
        kind, empty = parameter.KEYWORD_ONLY, parameter.empty
        return parameter.replace(kind=kind, default=(), annotation=empty)
    return parameter


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
    _tasks.pop(name, None)
    registry.unregister(name)


def forget_module(module: str) -> None:
    """:func:`forget` the Tasks of a module. For tests that declare some."""
    for name in [name for name in _tasks if name.rpartition(".")[0] == module]:
        forget(name)
