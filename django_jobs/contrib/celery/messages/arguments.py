"""The arguments of a task as the payload of a job, and back."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from kombu.exceptions import EncodeError
from kombu.serialization import dumps
from kombu.utils import json as kombu_json

from ....api.job_type import JobType
from ....api.steps import takes_any
from ....domain.payload import MAX_DEPTH, Coding, NotStorable, Path, encode
from ....exceptions import PayloadError

MARKED = {"__type__", "__value__"}
"""The keys of kombu's encoding of a type that JSON lacks, such as a date."""
AS_TEXT = "django_jobs.json"
"""The ``__type__`` of a value that jsonb does not keep. Its ``__value__`` is the JSON of it."""
SUSPECT = re.compile(rf"NaN|Infinity|e\+|-0\.0|\\u0000|\\ud|\d{{4000}}|{re.escape(AS_TEXT)}")
"""In each JSON text that jsonb may not keep, but for its depth. To look for it takes 2 µs, and to
check a small value 25."""
LEAST_WHOLE = 1e16
"""From here on Python writes a float with an exponent, and jsonb returns a whole number."""


class NotJSON(PayloadError, EncodeError):  # type: ignore[misc]  # Celery has no types
    """The arguments of a task are not JSON: as an error of an enqueue, and as Celery's own."""


NOTHING_MORE: Mapping[str, Any] = {}


def _any_arguments(args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None: ...


AS_A_PAIR = inspect.signature(_any_arguments)
"""The signature of a job type whose task takes arguments that have no names."""
EXPIRES = "expires"
MORE = "*"
"""Where the payload of a schedule, which has no headers, has what the call says besides."""


def signature_of(run: Callable[..., Any]) -> inspect.Signature:
    """The signature of a job type: that of the task, so that the payload has its arguments by name;
    ``(args, kwargs)`` for a task with ``*args`` or arguments by position only, or whose payload
    would look like these."""
    signature = inspect.signature(run, follow_wrapped=False)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            return AS_A_PAIR
    return AS_A_PAIR if AS_A_PAIR.parameters.keys() <= signature.parameters.keys() else signature


class TaskType(JobType[..., Any]):
    """The job type of a task. A stored payload fits every code, because Celery calls the task by
    position, and a call that it does not take is a failed task."""

    __slots__ = ()

    def bind(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """:meth:`JobType.bind`; of a call by name all arguments."""
        return super().bind(*args, **kwargs) if args else kwargs


def payload_of(
    job_type: JobType[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The payload of a call by name, and what the call says besides: ``by_position`` has the names
    of the arguments that were given so, in their order; ``orders`` the keys of each dict whose
    order jsonb does not keep.

    Arguments have no names if the task, as this code has it, does not take the call, or takes any:
    then the payload is ``{"args": [...], "kwargs": {...}}``. Raises :class:`PayloadError` for what
    is not JSON, and what :func:`check_kinds` raises."""
    check_kinds(args, kwargs)
    payload: dict[str, Any] = {"args": list(args), "kwargs": dict(kwargs)}
    names: list[str] = []
    if job_type.signature is not AS_A_PAIR:
        try:
            named = JobType.bind(job_type, *args, **kwargs)
        except PayloadError:
            named = payload
        if named.keys() != payload.keys():
            payload, names = named, list(job_type.signature.parameters)[: len(args)]
    stored = _in_jsonb(_text_of(payload, job_type.name, "payload"))
    if stored.keys() == MARKED:  # each by itself, so that the others stay readable
        stored = {name: as_result(value) for name, value in payload.items()}
    read_in_order = stored if takes_any(job_type) else list(stored.values())
    more = {"by_position": names, "orders": orders_of(read_in_order)}
    return stored, {key: value for key, value in more.items() if value}


def orders_of(value: Any) -> list[list[str]]:
    """The keys of each dict in ``value`` that are in another order than that of jsonb: shorter ones
    first. Of several dicts with the same keys that of the first."""
    orders: dict[frozenset[str], list[str]] = {}
    left = [value]
    while left:
        items = left.pop()
        if isinstance(items, dict):
            keys, items = list(items), list(items.values())
            if keys != sorted(keys, key=_as_jsonb_sorts):
                orders.setdefault(frozenset(keys), keys)
        left += (item for item in reversed(items) if isinstance(item, dict | list))
    return list(orders.values())


def _as_jsonb_sorts(key: str) -> tuple[int, bytes]:
    encoded = key.encode(errors="surrogatepass")
    return len(encoded), encoded


def in_order(value: Any, orders: Mapping[frozenset[str], Sequence[str]]) -> Any:
    if isinstance(value, dict):
        return {
            key: in_order(value[key], orders) for key in orders.get(frozenset(value), list(value))
        }
    return [in_order(item, orders) for item in value] if isinstance(value, list) else value


def scheduled_payload_of(
    job_type: JobType[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], expires: Any
) -> dict[str, Any]:
    """The payload of a schedule, whose jobs are not run ``expires`` seconds after they were due.
    Raises what :func:`payload_of` raises, and :class:`PayloadError` for a wrong call."""
    if job_type.signature is not AS_A_PAIR:
        JobType.bind(job_type, *args, **kwargs)
    payload, more = payload_of(job_type, args, kwargs)
    more |= {} if expires is None else {EXPIRES: expires}
    return {**payload, MORE: more} if more else payload


def check_kinds(args: Any, kwargs: Any) -> None:
    """Raise Celery's ``TypeError`` for arguments that are neither a list nor a tuple, and for
    keywords that are no mapping: a text or a dict would be taken apart."""
    if not isinstance(args, list | tuple):
        raise TypeError("task args must be a list or tuple")
    if not isinstance(kwargs, Mapping):
        raise TypeError("task keyword arguments must be a mapping")


def as_result(value: Any) -> Any:
    """What jsonb stores for a value. Raises Celery's ``EncodeError`` for one it cannot encode."""
    return _in_jsonb(dumps(value, serializer="json")[2])


def _in_jsonb(text: str) -> Any:
    """A value, given as JSON, in the form in which jsonb returns it unchanged: itself, or marked as
    :data:`AS_TEXT` if it has NaN, NUL, a lone surrogate, more than 64 levels, a float that would
    become another number, or the mark."""
    if not SUSPECT.search(text) and text.count("[") + text.count("{") <= MAX_DEPTH:
        return json.loads(text)
    try:
        value = _DECODER.decode(text)
        encode(value, max_bytes=sys.maxsize)
        if AS_TEXT not in text:
            return value
    except (ValueError, RecursionError):
        pass
    return {"__type__": AS_TEXT, "__value__": text}


def _same_float(text: str) -> float:
    number = float(text)
    if text == "-0.0" or abs(number) >= LEAST_WHOLE:
        raise ValueError(text)
    return number


_DECODER = json.JSONDecoder(parse_float=_same_float)


def as_json(value: Any, where: str, name: Path) -> Any:
    """``value`` as Celery's serializer ``json`` encodes it: a datetime, a date, a time, a UUID, a
    Decimal and bytes become an object that :func:`revived` reads. Raises :class:`NotJSON` for
    any other, with its place in what is called ``name``."""
    return json.loads(_text_of(value, where, name))


def _text_of(value: Any, where: str, name: Path) -> str:
    try:
        return str(kombu_json.dumps(value))
    except RecursionError as error:
        problem = NotStorable(name, str(error))
    except (TypeError, ValueError) as error:
        problem = NotStorable(_place_in(value, name), str(error))
    raise NotJSON(f"{where}: its arguments are not JSON: {problem}")


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
    """What Celery's ``json`` decodes from what :func:`as_json` or :func:`as_result` returned."""
    if isinstance(value, dict):
        if value.keys() == MARKED:
            if value["__type__"] == AS_TEXT:
                return kombu_json.loads(value["__value__"])
            return kombu_json.object_hook({**value, "__value__": revived(value["__value__"])})
        return {key: revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [revived(item) for item in value]
    return value


CODING = Coding(lambda value: as_json(value, "the form", "value"), revived, MARKED)
"""Of the arguments of tasks, for the forms of the admin."""


def arguments_of(
    job_type: JobType[..., Any], payload: Mapping[str, Any], more: Mapping[str, Any] = NOTHING_MORE
) -> tuple[list[Any], dict[str, Any]]:
    """The ``args`` and ``kwargs`` of what :func:`payload_of` returned. Those ``by_position`` are
    given so, whatever the task calls them now; one that is no longer in the payload, because
    somebody edited it, ends them."""
    values = revived(dict(payload))
    more = more or values.pop(MORE, NOTHING_MORE)
    if orders := more.get("orders"):
        values = in_order(values, {frozenset(keys): keys for keys in orders})
    names = more.get("by_position", ())
    keys = AS_A_PAIR.parameters.keys()
    is_pair = values.keys() <= keys if job_type.signature is AS_A_PAIR else values.keys() == keys
    if is_pair and not names:
        return list(values.get("args") or ()), dict(values.get("kwargs") or {})
    given = takewhile(values.__contains__, names)
    return [values.pop(name) for name in list(given)], values
