"""The arguments of a task as the payload of a job, and back."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kombu.utils import json as kombu_json

from ....api.job_type import JobType
from ....domain.payload import Coding, NotStorable, Path
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
    or they are not JSON, and what :func:`check_kinds` raises."""
    check_kinds(args, kwargs)
    if job_type.signature is AS_A_PAIR:
        payload: dict[str, Any] = {"args": list(args), "kwargs": dict(kwargs)}
    else:
        payload = job_type.bind(*args, **kwargs)
    return dict(as_json(payload, job_type.name, "payload"))


def check_kinds(args: Any, kwargs: Any) -> None:
    """Raise Celery's ``TypeError`` for arguments that are neither a list nor a tuple, and for
    keywords that are no mapping: a text or a dict would be taken apart."""
    if not isinstance(args, list | tuple):
        raise TypeError("task args must be a list or tuple")
    if not isinstance(kwargs, Mapping):
        raise TypeError("task keyword arguments must be a mapping")


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


def as_json(value: Any, where: str, name: Path) -> Any:
    """``value`` as Celery's serializer ``json`` encodes it: a datetime, a date, a time, a UUID, a
    Decimal and bytes become an object that :func:`revived` reads. Raises :class:`PayloadError` for
    any other, with its place in what is called ``name``."""
    try:
        return json.loads(kombu_json.dumps(value))
    except RecursionError as error:
        problem = NotStorable(name, str(error))
    except (TypeError, ValueError) as error:
        problem = NotStorable(_place_in(value, name), str(error))
    raise PayloadError(f"{where}: its arguments are not JSON: {problem}")


def _place_in(value: Any, path: Path) -> Path:
    """The place of the innermost value that Celery's serializer does not encode."""
    items: Iterable[tuple[Path, Any]] = ()
    if isinstance(value, Mapping):
        items = (((path, ".{}", key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        items = (((path, "[{}]", place), item) for place, item in enumerate(value))
    for place, item in items:
        try:
            kombu_json.dumps(item)
        except (TypeError, ValueError):
            return _place_in(item, place)
    return path


def revived(value: Any) -> Any:
    """What Celery's serializer ``json`` decodes from a value that :func:`as_json` returned."""
    if isinstance(value, dict):
        if value.keys() == MARKED:
            return kombu_json.object_hook({**value, "__value__": revived(value["__value__"])})
        return {key: revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [revived(item) for item in value]
    return value


CODING = Coding(lambda value: as_json(value, "the form", "value"), revived, MARKED)
"""Of the arguments of tasks, for the forms of the admin."""


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
