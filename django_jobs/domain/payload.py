"""Strict, bounded JSON for payloads and results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Set
from dataclasses import is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

MAX_DEPTH = 64
LONGEST_PATH = 120
"""Characters of a path in a message. Of a longer one the head and the tail are shown."""
LONGEST_KEY = 200
"""Characters of an idempotency key or a receipt's key."""
KEY_SEPARATOR = "\x1f"
"""Between a tenant and a key that is unique within it. No name of a tenant has a control character,
and no idempotency key has this one."""
MAX_INT_BITS = 14_000
"""Just under the 4,300 digits above which Python and the ORM cannot read it back."""


STORED = "$stored"
FILE_KEYS, VALUE_KEYS = {STORED, "name", "size"}, {STORED, "size"}
"""Of a reference to a file, and to JSON that is in a file because of its size."""

# A value that contains itself is refused before, as nested too deeply.
ENCODER = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, check_circular=False, separators=(",", ":")
)


Path = str | tuple["Path", str, Any]
"""A place in a value: its name, or ``(path, format, step)``. Written out in an error only, because
that takes a third of the time of an encoding."""


def _written(path: Path) -> str:
    if isinstance(path, str):
        return path
    parent, form, step = path
    return _written(parent) + form.format(step)


class Coding(NamedTuple):
    """How the payload of a job type has values that JSON lacks, such as dates: what makes JSON of
    one, and one of JSON, which is an object with these ``keys``. Its handler's ``coding``."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    keys: Set[str]

    def decoded(self, stored: Any) -> Any:
        """The date, time, UUID or Decimal that ``stored`` is the encoding of; else ``stored``."""
        if not (isinstance(stored, dict) and stored.keys() == self.keys):
            return stored
        try:
            value = self.decode(stored)
        except Exception:  # it was not written by the code that reads it
            return stored
        return value if type(value) in WRITTEN else stored

    def as_text(self, stored: Any) -> Any:
        """``stored`` with each date, time, UUID and Decimal in it as a person writes it."""
        value = self.decoded(stored)
        if value is not stored:
            return WRITTEN[type(value)](value)
        if isinstance(stored, dict):
            return {key: self.as_text(item) for key, item in stored.items()}
        if isinstance(stored, list):
            return [self.as_text(item) for item in stored]
        return stored


WRITTEN: dict[type, Callable[[Any], str]] = {
    date: date.isoformat,
    datetime: datetime.isoformat,
    time: time.isoformat,
    UUID: str,
    Decimal: str,
}
"""What JSON lacks and a person writes as text, with what makes the text."""


def is_reference(value: Any) -> bool:
    """Whether ``value`` stands for what is in a file of ``DJANGO_JOBS["STORAGE"]``."""
    return isinstance(value, dict) and STORED in value and value.keys() in (FILE_KEYS, VALUE_KEYS)


def references(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in ``value`` that have the key of a reference to a file."""
    if isinstance(value, dict) and STORED in value:
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from references(item)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same, as jsonb compares them: to Python 1 is ``True``."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


class NotStorable(ValueError):
    """The value cannot be stored. ``path`` is the place, such as ``payload.items[3]``."""

    def __init__(self, path: Path, problem: str) -> None:
        where, half = _written(path), LONGEST_PATH // 2
        self.path = where if len(where) <= LONGEST_PATH else f"{where[:half]} … {where[-half:]}"
        self.problem = problem
        super().__init__(f"{self.path}: {problem}")


def encode(value: Any, *, max_bytes: int, name: Path = "payload") -> str:
    """``value`` as JSON text that PostgreSQL's jsonb stores and returns unchanged.

    Exceptions: tuples become lists, and a float of 1e16 or more comes back as a whole number.
    Raises :class:`NotStorable` for types that JSON does not have (dates, sets, model instances),
    NaN and infinities, keys that are not strings, NUL and lone surrogates, nesting deeper than 64,
    integers above 4,200 digits, and more than ``max_bytes`` bytes. A value that is far too large
    is refused before all of it is read.
    """
    remaining = _measure(value, name, 0, max_bytes, name, max_bytes)
    text = ENCODER.encode(value)
    # The estimate counts a control character as one byte, but its escape takes six. If the total
    # could be too large, the encoded size is checked.
    if remaining < max_bytes * 5 // 6 and len(text.encode()) > max_bytes:
        raise NotStorable(name, _too_large(max_bytes))
    return text


def _measure(value: Any, path: Path, depth: int, remaining: int, name: Path, max_bytes: int) -> int:
    """Check ``value``, and return how many of the allowed bytes are left after it."""
    kind = type(value)
    if kind is str or isinstance(value, str):
        remaining -= len(value) + 2
        if remaining < 0:
            raise NotStorable(name, _too_large(max_bytes))
        if "\x00" in value:
            raise NotStorable(path, "text with a NUL character cannot be stored in PostgreSQL")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise NotStorable(path, "text with a lone surrogate is not valid Unicode")
        return remaining
    if value is None or value is True or value is False:
        return _spend(remaining, 5, name, max_bytes)
    if isinstance(value, int):
        if value.bit_length() > MAX_INT_BITS:
            raise NotStorable(path, "an integer of more than 4,200 digits")
        return _spend(remaining, value.bit_length() // 4 + 2, name, max_bytes)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotStorable(path, f"{value!r} is not JSON; pass None, or text")
        return _spend(remaining, 20, name, max_bytes)
    if depth >= MAX_DEPTH:
        raise NotStorable(path, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotStorable(path, f"key {key!r} is {a_kind(key)}, not a string")
            remaining = _measure(key, (path, " key {!r}", key), depth, remaining, name, max_bytes)
            remaining = _measure(item, (path, ".{}", key), depth + 1, remaining, name, max_bytes)
        return _spend(remaining, 2, name, max_bytes)
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            remaining = _measure(item, (path, "[{}]", index), depth + 1, remaining, name, max_bytes)
        return _spend(remaining, 2, name, max_bytes)
    raise NotStorable(path, _not_json(value))


def _spend(remaining: int, size: int, name: Path, max_bytes: int) -> int:
    remaining -= size
    if remaining < 0:
        raise NotStorable(name, _too_large(max_bytes))
    return remaining


def _too_large(max_bytes: int) -> str:
    return f"larger than {max_bytes:,} bytes; store the data in a table or a file and pass its key"


def a_kind(value: Any) -> str:
    """The type of ``value`` with its article: ``an int``, ``a UUID``."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def key_problem(key: Any, noun: str, name: str) -> str | None:
    """Why ``key`` cannot be ``noun`` ("an idempotency key"), or None. ``name`` is its argument."""
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY:
        shown = f"one of {len(key)}" if isinstance(key, str) else repr(key)
        return f"{noun} is text of 1 to {LONGEST_KEY} characters, not {shown}"
    if key.isascii() and key.isprintable():  # like nearly every key, and twenty times as fast
        return None
    try:
        encode(key, max_bytes=4 * LONGEST_KEY + 2, name=name)
    except NotStorable as error:
        return str(error)
    return None


def key_parts(stored: str) -> tuple[str | None, str]:
    """The tenant within which a stored idempotency key is unique, or None, and the given key."""
    tenant, separator, key = stored.partition(KEY_SEPARATOR)
    return (tenant, key) if separator else (None, stored)


def _not_json(value: Any) -> str:
    kind = type(value)
    hints = {
        "datetime": "pass value.isoformat()",
        **dict.fromkeys(("date", "time"), "pass value.isoformat()"),
        "Decimal": "pass str(value)",
        "UUID": "pass str(value)",
        "timedelta": "pass value.total_seconds()",
        "set": "pass sorted(value)",
        "frozenset": "pass sorted(value)",
        "bytes": "pass base64 text",
        **dict.fromkeys(
            ("function", "method", "builtin_function_or_method", "type", "JobType"),
            "pass its name",
        ),
        "generator": "pass list(value)",
        "__proxy__": "pass str(value): it is a lazy text",
        "Stored": "files are for enqueue() and enqueue_many() of a job, its result and checkpoints",
    }
    hint = hints.get(kind.__name__)
    if hint is None and isinstance(value, Enum):
        hint = "pass value.value"
    if hint is None and isinstance(value, BaseException):
        hint = "pass str(value)"
    if hint is None and is_dataclass(value):
        hint = "pass dataclasses.asdict(value)"
    if hint is None and hasattr(kind, "_meta"):
        hint = "pass the object's primary key and load it in the handler"
    if hint is None and hasattr(kind, "values_list"):
        hint = "pass keys: list(queryset.values_list('pk', flat=True))"
    return f"{a_kind(value)} is not JSON" + (f"; {hint}" if hint else "")
