"""Payloads: the opt-in check against the annotations of a handler, the upgrade of a stored one to
the version that the handler reads, and the checks of many, one by one as they are read."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, partial
from inspect import unwrap
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from django.utils.dateparse import parse_duration

from ..conf import conf
from ..domain.payload import Path, a_kind, is_reference
from ..exceptions import EnqueueError, PayloadError
from ..lifecycle.bulk_insert import Item, ReadAhead
from . import gating
from .duplicates import stored_key
from .validation import check_key

if TYPE_CHECKING:
    from .job_type import JobType


Accepts = Callable[[Any], bool]


def _text_for(read: Callable[[str], object]) -> Accepts:
    """Whether a value is text that ``read`` takes."""

    def accepts(value: Any) -> bool:
        try:
            return isinstance(value, str) and read(value) is not None
        except (ValueError, ArithmeticError):
            return False

    return accepts


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


PLAIN: dict[Any, Accepts] = {
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: _is_number,
    str: lambda value: isinstance(value, str),
    list: lambda value: isinstance(value, list | tuple),
    tuple: lambda value: isinstance(value, list | tuple),
    dict: lambda value: isinstance(value, Mapping),
    None: lambda value: value is None,
    types.NoneType: lambda value: value is None,
}
"""What JSON has. Of lists and dicts the items are not looked at."""
FROM_TEXT: dict[Any, Accepts] = {
    date: _text_for(date.fromisoformat),
    datetime: _text_for(datetime.fromisoformat),
    time: _text_for(time.fromisoformat),
    UUID: _text_for(UUID),
    Decimal: lambda value: _is_number(value) or _text_for(Decimal)(value),
    timedelta: lambda value: _is_number(value) or _text_for(parse_duration)(value),
}
"""What the text or the number of an argument is read as, by a handler that wants one of these."""


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
                is_read = isinstance(value, str) and set(rules[name]) & {*FROM_TEXT.values()}
                given = a_kind(value) + (" that does not parse" if is_read else "")
                raise PayloadError(
                    f"{job_type.name}: {name} is {given}, and its annotation is {text}"
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
        return [(PLAIN | FROM_TEXT)[origin or annotation]]
    except (KeyError, TypeError):
        return None


def _text_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


class UpgradeRaised(PayloadError):
    """An upgrade raised ``error``. ``brief`` is without its message, which may quote values."""

    def __init__(self, step: int, error: Exception) -> None:
        from ..domain.errors import ErrorReport

        report = ErrorReport.of(error)
        self.brief = f"the upgrade from version {step} raised {report.type}"
        super().__init__(f"the upgrade from version {step} raised {report.summary}")


TEXT = itemgetter(0)
"""Of an item, without a call of Python for each of thousands."""

Request = tuple[int, Mapping[str, Any], str | None]
"""One of many jobs: its index, its payload and its idempotency key."""


def items_of(
    job_type: JobType[..., Any],
    payloads: Iterable[Mapping[str, Any]],
    keys: Iterable[str | None] | None = None,
    *,
    stores: bool = False,
) -> ReadAhead[Request, Item]:
    """What jobs of these payloads do not have in common. ``stores`` saves their files."""
    if keys is None and job_type.idempotency_key is not None:
        raise EnqueueError(
            f"{job_type.name}: enqueue_many takes a key for each payload: idempotency_keys="
        )
    plain = ((index, payload, None) for index, payload in enumerate(payloads))
    requests = plain if keys is None else _keyed(job_type, payloads, keys)
    # A generator may use the connection, or change a payload that it has given.
    early = isinstance(payloads, list | tuple) and not gating.calls_project(job_type)
    if stores and job_type.takes_files and conf().storage is not None:
        from ..lifecycle.stored_files import encoded_with_files

        encode = partial(encoded_with_files, job_type.name, job_type.encoded_payload)
        return ReadAhead(requests, partial(_item, job_type, encode), early=False, size=_size)
    make = partial(_item, job_type, job_type.encoded_payload)
    return ReadAhead(requests, make, early=early, size=_size)


def _size(items: list[Item]) -> int:
    return sum(map(len, map(TEXT, items)))


def _keyed(
    job_type: JobType[..., Any], payloads: Iterable[Mapping[str, Any]], keys: Iterable[str | None]
) -> Iterator[Request]:
    # Each character of a text would be a key, and those of a set are in any order.
    if isinstance(keys, str | bytes | set | frozenset) or not isinstance(keys, Iterable):
        raise EnqueueError(
            f"{job_type.name}: idempotency_keys is a list with a key or None for each payload, not "
            f"{a_kind(keys)}"
        )
    wrong = f"{job_type.name}: idempotency_keys must be as many as the payloads"
    left = iter(keys)
    for index, payload in enumerate(payloads):
        try:
            key = next(left)
        except StopIteration:
            raise EnqueueError(wrong) from None
        yield index, payload, key
    for _ in left:
        raise EnqueueError(wrong)


def _item(
    job_type: JobType[..., Any], encode: Callable[[dict[str, Any], Path], str], request: Request
) -> Item:
    index, payload, key = request
    if key is not None:
        check_key(key, job_type.name)
    if not isinstance(payload, Mapping):
        problem = f"payload[{index}] is {a_kind(payload)}, not a dict of arguments"
        raise PayloadError(f"{job_type.name}: {problem}")
    try:
        job_type.check_payload(payload)
    except (TypeError, PayloadError) as error:
        raise PayloadError(f"payload[{index}]: {error}") from None
    arguments = dict(payload)
    text = encode(arguments, ("payload", "[{}]", index))
    try:
        gates = job_type.gates_of(arguments)
        return text, None if key is None else stored_key(job_type, key, gates), gates
    except EnqueueError as error:
        raise type(error)(f"payload[{index}]: {error}") from error.__cause__
