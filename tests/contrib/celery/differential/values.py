"""What tasks return and raise."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from celery.exceptions import Ignore, SoftTimeLimitExceeded, TaskError
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import IntegrityError
from django.utils.functional import lazystr


class Color(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Word(enum.StrEnum):
    HELLO = "hello"


class Text(str):
    """A subclass."""


class Pair(NamedTuple):
    a: int
    b: int


@dataclasses.dataclass
class Point:
    x: int = 1


class Custom:
    def __json__(self) -> Any:
        return {"custom": 1}

    def __repr__(self) -> str:
        return "Custom()"


DAY = datetime.date(2026, 5, 1)
MOMENT = datetime.datetime(2026, 5, 1, 12, 30, 15, 123456)  # naive
ZONE = datetime.timezone(datetime.timedelta(hours=2))


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "zero": lambda: 0,
    "a number": lambda: 42,
    "a negative number": lambda: -7,
    "a number over 64 bits": lambda: 2**70,
    "a float": lambda: 1.5,
    "a whole float": lambda: 2.0,
    "a large float": lambda: 1e16,
    "a very large float": lambda: 1e308,
    "a very small float": lambda: 5e-324,
    "a sum of floats": lambda: 0.1 + 0.2,
    "minus zero": lambda: -0.0,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "NaN in a list": lambda: [1, float("nan")],
    "an empty text": lambda: "",
    "a text": lambda: "text",
    "unicode": lambda: "h\u00e9llo \u2603 \U0001d11e",
    "text with NUL": lambda: "a\x00b",
    "NUL in a key": lambda: {"a\x00": 1},
    "a lone surrogate": lambda: "\ud800",
    "an empty list": lambda: [],
    "a list": lambda: [1, "a", None, [2.5]],
    "an empty dict": dict,
    "a dict": lambda: {"a": 1, "b": [1, 2]},
    "the order of keys": lambda: {"zz": 1, "b": 2, "aaa": {"y": 1, "x": 2}},
    "numbers as keys": lambda: {1: "a", 10: "b"},
    "None and True as keys": lambda: {None: 1, True: 2},
    "a tuple as key": lambda: {(1, 2): 3},
    "a datetime": lambda: MOMENT.replace(tzinfo=datetime.UTC),
    "a datetime of a zone": lambda: MOMENT.replace(tzinfo=ZONE),
    "a naive datetime": lambda: MOMENT,
    "a date": lambda: DAY,
    "a time": lambda: datetime.time(2, 30),
    "a UUID": lambda: uuid.UUID(int=2**127 + 7),
    "a decimal": lambda: decimal.Decimal("1.10"),
    "bytes": lambda: b"abc",
    "bytes that are no text": lambda: b"\xff\x00",
    "dates in a dict": lambda: {"day": DAY, "all": [DAY, decimal.Decimal(1)]},
    "a tuple": lambda: (1, 2),
    "a named tuple": lambda: Pair(1, 2),
    "an ordered dict": lambda: collections.OrderedDict(b=1, a=2),
    "a defaultdict": lambda: collections.defaultdict(int, a=1),
    "a subclass of str": lambda: Text("text"),
    "an IntEnum": lambda: Size.BIG,
    "a StrEnum": lambda: Word.HELLO,
    "a lazy text": lambda: lazystr("lazy"),
    "an object with __json__": Custom,
    "a set": lambda: {1},
    "a frozenset": lambda: frozenset({1}),
    "a set in a dict": lambda: {"a": {1}},
    "a timedelta": lambda: datetime.timedelta(days=1),
    "an Enum": lambda: Color.RED,
    "a dataclass": Point,
    "a path": lambda: pathlib.PurePosixPath("/a"),
    "an object": object,
    "a complex number": lambda: 1j,
    "a generator": lambda: (n for n in [1]),
    "a class": lambda: int,
    "a function": lambda: len,
    "an exception": lambda: ValueError("returned"),
    "infinities in a dict": lambda: {"at": [float("inf"), -float("inf")]},
    "a surrogate beside its pair": lambda: "\N{CAT}\udc08",
    "a date beside what is no JSON": lambda: {"day": DAY, "none": float("nan")},
    "floats of all sizes": lambda: [1e16, 1e308, -1e17, 1e15, 1e-300],
    "text like constants": lambda: ["NaN", "\\u0000", "null", "-0.0", "1e+16"],
    "nothing in a list": lambda: [None, [], {}, ""],
    "an integer of 4,000 digits": lambda: 10**4000,
    "a list 30 deep": lambda: nested(30),
    "as deep as jsonb keeps and a level more": lambda: [nested(62), nested(63)],
    "a list 100 deep": lambda: nested(100),
    "a list 200 deep": lambda: nested(200),
    "400 kB of text": lambda: "x" * 400_000,
    "1.5 MB of text": lambda: "x" * 1_500_000,
    "100 kB of text": lambda: "\u00e9" * 100_000,
    "a dict like a note": lambda: {"not_stored": 5},
    "a dict like a mark": lambda: {"__type__": "uuid"},
    "a dict like a date": lambda: {"__type__": "date", "__value__": "2026-05-01"},
    "a dict of Celery": lambda: {"exc_type": "ValueError", "exc_message": "x"},
    "a text like a date": lambda: "2026-05-01T12:00:00Z",
}


class OneArgument(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class TwoArguments(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.status = status


class OtherArguments(Exception):
    """Of its two, ``args`` has one that was made of them."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")


class NoArguments(Exception):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__()


class KeywordOnly(Exception):
    def __init__(self, *, status: int) -> None:
        super().__init__(f"status {status}")


class Outer:
    class Inner(Exception):
        pass


class OfBase(BaseException):
    pass


class OfTask(TaskError):  # type: ignore[misc]
    pass


def local() -> Exception:
    class Local(Exception):
        pass

    return Local("local")


def group() -> Exception:
    return ExceptionGroup("all", [ValueError("a"), KeyError("b")])


ERRORS: dict[str, Callable[[], BaseException]] = {
    "without arguments": lambda: ValueError(),
    "one argument": lambda: ValueError("no"),
    "two arguments": lambda: ValueError("a", 2),
    "a number": lambda: ValueError(42),
    "an empty text": lambda: ValueError(""),
    "None": lambda: ValueError(None),
    "a dict": lambda: RuntimeError({"a": 1}),
    "a list": lambda: RuntimeError([1, "a"]),
    "a tuple": lambda: RuntimeError((1, 2)),
    "a set": lambda: RuntimeError({1}),
    "an object": lambda: RuntimeError(Point()),
    "a date": lambda: RuntimeError(DAY),
    "a UUID": lambda: RuntimeError(uuid.UUID(int=2**127 + 7)),
    "bytes": lambda: RuntimeError(b"ab"),
    "a class": lambda: RuntimeError(int),
    "an error": lambda: RuntimeError(ValueError("inner")),
    "unicode": lambda: ValueError("h\u00e9llo \u2603"),
    "NUL": lambda: ValueError("a\x00b"),
    "a long text": lambda: ValueError("x" * 20_000),
    "many lines": lambda: ValueError("a\nb\n"),
    "KeyError": lambda: KeyError("k"),
    "KeyError of a number": lambda: KeyError(3),
    "IndexError": lambda: IndexError("list index out of range"),
    "FileNotFoundError": lambda: FileNotFoundError(2, "No such file", "f"),
    "OSError": lambda: OSError(5, "broken"),
    "ConnectionError": lambda: ConnectionError("no answer"),
    "ConnectionResetError": lambda: ConnectionResetError(104, "reset"),
    "TimeoutError": lambda: TimeoutError(),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    "JSONDecodeError": lambda: json.JSONDecodeError("bad", "doc", 0),
    "ImportError": lambda: ImportError("no", name="m"),
    "StopIteration": lambda: StopIteration("end"),
    "AssertionError": lambda: AssertionError(),
    "ZeroDivisionError": lambda: ZeroDivisionError("division by zero"),
    "NotImplementedError": lambda: NotImplementedError("later"),
    "RecursionError": lambda: RecursionError("deep"),
    "UserWarning": lambda: UserWarning("careful"),
    "an ExceptionGroup": group,
    "OneArgument": lambda: OneArgument(503),
    "TwoArguments": lambda: TwoArguments(503, {"a": 1}),
    "OtherArguments": lambda: OtherArguments(503, "b"),
    "NoArguments": lambda: NoArguments(503),
    "KeywordOnly": lambda: KeywordOnly(status=503),
    "a nested class": lambda: Outer.Inner("inner"),
    "a local class": local,
    "ObjectDoesNotExist": lambda: ObjectDoesNotExist("no row"),
    "ValidationError": lambda: ValidationError("invalid", code="x"),
    "ValidationError of fields": lambda: ValidationError({"name": ["required"]}),
    "IntegrityError": lambda: IntegrityError("duplicate key"),
    "Decimal": lambda: decimal.InvalidOperation([decimal.ConversionSyntax]),
    "TaskError": lambda: OfTask("of Celery"),
    "SoftTimeLimitExceeded": lambda: SoftTimeLimitExceeded("by hand"),
    "CancelledError": lambda: asyncio.CancelledError("stop"),
    "a BaseException": lambda: OfBase("base"),
    "Ignore": lambda: Ignore("ignored"),
}
