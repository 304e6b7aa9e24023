"""The arguments of a task as the payload of a job, and back."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kombu.utils import json as kombu_json

from ....api.job_type import JobType
from ....exceptions import PayloadError

MARKED = {"__type__", "__value__"}
"""The keys of kombu's encoding of a type that JSON lacks, such as a date."""


def _any_arguments(args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None: ...


AS_A_PAIR = inspect.signature(_any_arguments)
"""The signature of a job type whose task takes arguments that have no names."""


def signature_of(run: Callable[..., Any]) -> inspect.Signature:
    """The signature of a job type: that of the task, so that the payload has its arguments by name;
    ``(args, kwargs)`` for a task with ``*args`` or arguments by position only."""
    signature = inspect.signature(run, follow_wrapped=False)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            return AS_A_PAIR
    return signature


def payload_of(
    job_type: JobType[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The payload of a call. Raises :class:`PayloadError` if the task does not take the arguments,
    or they are not JSON."""
    if job_type.signature is AS_A_PAIR:
        payload: dict[str, Any] = {"args": list(args), "kwargs": dict(kwargs)}
    else:
        payload = job_type.bind(*args, **kwargs)
    return dict(as_json(payload, job_type.name))


def by_position_of(job_type: JobType[..., Any], args: Sequence[Any]) -> int:
    """How many arguments :func:`arguments_of` has to return by position."""
    return 0 if job_type.signature is AS_A_PAIR else len(args)


def as_result(value: Any) -> Any:
    """The result of a task as :func:`as_json` encodes it; unchanged if that is not possible, so
    that a note about it is stored, as of any handler's."""
    try:
        return json.loads(kombu_json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return value


def as_json(value: Any, where: str) -> Any:
    """``value`` as Celery's serializer ``json`` encodes it: a datetime, a date, a time, a UUID, a
    Decimal and bytes become an object that :func:`revived` reads."""
    try:
        return json.loads(kombu_json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"{where}: its arguments are not JSON: {error}") from None


def revived(value: Any) -> Any:
    """What Celery's serializer ``json`` decodes from a value that :func:`as_json` returned."""
    if isinstance(value, dict):
        if value.keys() == MARKED:
            return kombu_json.object_hook({**value, "__value__": revived(value["__value__"])})
        return {key: revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [revived(item) for item in value]
    return value


def arguments_of(
    job_type: JobType[..., Any], payload: Mapping[str, Any], by_position: int
) -> tuple[list[Any], dict[str, Any]]:
    """The ``args`` and ``kwargs`` of a payload, of which the first ``by_position`` were given by
    position."""
    values = revived(dict(payload))
    if job_type.signature is AS_A_PAIR:
        return list(values.get("args") or ()), dict(values.get("kwargs") or {})
    names = list(job_type.signature.parameters)[:by_position]
    return [values.pop(name) for name in names if name in values], values
