"""The opt-in check of arguments against the annotations of a handler."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from inspect import unwrap
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..domain.payload import a_kind, is_reference
from ..exceptions import PayloadError

if TYPE_CHECKING:
    from .job_type import JobType

Accepts = Callable[[Any], bool]

PLAIN: dict[Any, Accepts] = {
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    list: lambda value: isinstance(value, list | tuple),
    tuple: lambda value: isinstance(value, list | tuple),
    dict: lambda value: isinstance(value, Mapping),
    None: lambda value: value is None,
    types.NoneType: lambda value: value is None,
}
"""What JSON has. Of lists and dicts the items are not looked at."""


def check_annotations(job_type: JobType[..., Any], payload: Mapping[str, Any]) -> None:
    """Raise :class:`PayloadError` for an argument that is not what its plain annotation says.

    An annotation of another type, or one that cannot be evaluated here, allows everything. The
    default of an argument is always allowed.
    """
    rules = _rules(job_type.handler)
    for name, value in payload.items():
        if name in rules and not any(accepts(value) for accepts in rules[name]):
            if is_reference(value):
                continue
            parameter = job_type.signature.parameters[name]
            if value is not parameter.default:
                annotation = parameter.annotation
                text = annotation if isinstance(annotation, str) else _text_of(annotation)
                raise PayloadError(
                    f"{job_type.name}: {name} is {a_kind(value)}, and its annotation is {text}"
                )


@cache
def _rules(handler: Callable[..., Any]) -> dict[str, list[Accepts]]:
    """What each argument accepts, if that can be known."""
    annotations = getattr(handler, "__annotations__", {})
    rules = {name: _accepted(_evaluated(one, handler)) for name, one in annotations.items()}
    return {name: accepts for name, accepts in rules.items() if accepts is not None}


def _evaluated(annotation: Any, handler: Callable[..., Any]) -> Any:
    """The annotation itself, of its text where ``from __future__ import annotations`` is used. Its
    names are those of the module of the handler, and not of a decorator."""
    if not isinstance(annotation, str):
        return annotation
    alone = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        return get_type_hints(alone, globalns=getattr(unwrap(handler), "__globals__", {}))["value"]
    except Exception:  # a name that only type checkers import
        return Any


def _accepted(annotation: Any) -> list[Accepts] | None:
    """What a value may be; None if that is not known."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [_accepted(part) for part in get_args(annotation)]
        known = [part for part in parts if part is not None]
        return [*chain.from_iterable(known)] if len(known) == len(parts) else None
    if origin is Literal:
        values = get_args(annotation)
        return [lambda value: value in values]
    try:
        return [PLAIN[origin or annotation]]
    except (KeyError, TypeError):
        return None


def _text_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
