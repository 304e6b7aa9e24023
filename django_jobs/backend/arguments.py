"""The arguments of a Task: given by position or by name, stored by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..exceptions import PayloadError


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
        """The arguments of the request, of which ``count`` of the named ones had been given by
        position."""
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
