"""What the project sends: options, ways to send, places in a canvas, and ways to end."""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery import VERSION, chain, chord, chunks, group
from celery.contrib.abortable import AbortableAsyncResult
from celery.result import AsyncResult, result_from_tuple
from django.db import transaction
from kombu import Exchange

from . import tasks
from .celery import app
from .tasks import add, after, again, collect, echo, fail, out, plain
from .values import ERRORS, VALUES

At = Callable[[str], str]
"""The ``at`` of a task, from its name in the situation."""


@dataclass
class Situation:
    """``send`` returns the result. It has ended when all of its results are there; where Celery
    stores none, when each task of ``ends`` has run so often, or the hook behind its name was
    called, or the one of ``unless``. With an empty ``ends`` no task is looked at. ``kind`` is its
    name in docs/celery.md, or two of them with a ``|``. ``during`` is done when the task ``a`` has
    begun, and ``then`` when all have ended."""

    name: str
    send: Callable[[At], Any]
    kind: str = ""
    ends: Sequence[str] | None = None
    unless: str = ""
    during: Callable[[Any], Any] | None = None
    then: Callable[[Any], Any] | None = None


ALL: list[Situation] = []


def situation(name: str, send: Callable[[At], Any], **more: Any) -> None:
    ALL.append(Situation(name, send, **more))


# Values: as a result, on their way through a chain, and as an argument

NO_JSON = {
    *("a tuple as key", "a set", "a frozenset", "a set in a dict", "a timedelta", "an Enum"),
    *("a dataclass", "a path", "an object", "a complex number", "a generator", "a class"),
    *("a function", "an exception"),
}
"""Values that Celery's serializer refuses."""
TOO_LARGE = "1.5 MB of text"


def of_a_result(name: str) -> str:
    """The kind of a situation in which a task returns this value."""
    return "EncodeError" if name in NO_JSON else "ResultNotStored" if name == TOO_LARGE else name


def of_an_argument(name: str) -> str:
    return "PayloadError" if name in NO_JSON | {TOO_LARGE} else name


OF_A_HEADER = {
    **dict.fromkeys(("a set", "NaN", "text with NUL"), "PayloadError"),
    "a datetime": "headers=",
}
"""A header is stored as it is, so that PostgreSQL refuses what it does not keep."""

for name in VALUES:
    situation(
        f"result: {name}",
        lambda at, name=name: out.delay(name, at=at("a")),
        kind=of_a_result(name),
    )
    situation(
        f"passed on: {name}",
        lambda at, name=name: chain(out.s(name, at=at("a")), after.s(at=at("b"))).delay(),
        kind=of_a_result(name),
    )
    situation(
        f"argument: {name}",
        lambda at, name=name: echo.delay(VALUES[name](), at=at("a")),
        kind=of_an_argument(name),
    )
for name in (
    "a set",
    "NaN",
    "text with NUL",
    "a datetime",
    "the order of keys",
    "a dict like a note",
):
    situation(
        f"in a header: {name}",
        lambda at, name=name: echo.apply_async(
            kwargs={"at": at("a")}, headers={"x": VALUES[name]()}
        ),
        kind=OF_A_HEADER.get(name, name),
    )
    situation(
        f"header of a chord returns {name}",
        lambda at, name=name: chord(
            [out.s(name, at=at("a")), echo.s(1, at=at("b"))], collect.s(at=at("c"))
        ).delay(),
        kind=of_a_result(name),
    )
    situation(
        f"autoretry for the result: {name}",
        lambda at, name=name: tasks.auto_out.delay(name, at=at("a")),
        kind=of_a_result(name),
    )

# Errors

KIND_OF_ERROR = {
    **dict.fromkeys(
        ("OtherArguments", "NoArguments", "KeywordOnly", "a local class"),
        "UnpickleableExceptionWrapper",
    ),
    **dict.fromkeys(("CancelledError", "a BaseException"), "BaseException"),
    "Ignore": "Ignore",
}
for name in ERRORS:
    situation(
        f"raises: {name}",
        lambda at, name=name: fail.delay(name, at=at("a")),
        ends=["a"],
        kind=KIND_OF_ERROR.get(name, "exception.args"),
    )


def places(make: Callable[[str], Any]) -> dict[str, Callable[[At], Any]]:
    """A canvas for each place of the task that ``make`` returns for an ``at``; it is immutable."""

    def one(at: At, name: str) -> Any:
        return add.si(1, 2, at=at(name))

    def then(at: At, name: str) -> Any:
        return after.s(at=at(name))

    def body(at: At, name: str) -> Any:
        return collect.s(at=at(name))

    return {
        "first of a chain": lambda at: chain(make(at("a")), then(at, "b"), then(at, "c")),
        "middle of a chain": lambda at: chain(one(at, "b"), make(at("a")), then(at, "c")),
        "last of a chain": lambda at: chain(one(at, "b"), one(at, "c"), make(at("a"))),
        "member of a group": lambda at: group(one(at, "b"), make(at("a")), one(at, "c")),
        "header of a chord": lambda at: chord([make(at("a")), one(at, "b")], body(at, "c")),
        "body of a chord": lambda at: chord([one(at, "b"), one(at, "c")], make(at("a"))),
        "group in a chain": lambda at: chain(
            one(at, "b"), group(make(at("a")), then(at, "c")), body(at, "d")
        ),
        "group ends a chain": lambda at: chain(one(at, "b"), group(make(at("a")), then(at, "c"))),
        "before a group": lambda at: chain(make(at("a")), group(then(at, "b"), then(at, "c"))),
        "chain in a group": lambda at: group(
            chain(one(at, "b"), make(at("a")), then(at, "c")), one(at, "d")
        ),
        "chain in a chord": lambda at: chord(
            [chain(make(at("a")), then(at, "b")), one(at, "c")], body(at, "d")
        ),
        "chord in a chain": lambda at: chain(
            one(at, "b"), chord([make(at("a")), one(at, "c")], body(at, "d")), then(at, "e")
        ),
        "chord in a chord": lambda at: chord(
            [chord([make(at("a")), one(at, "b")], body(at, "c")), one(at, "d")], body(at, "e")
        ),
        "chain is the body": lambda at: chord(
            [one(at, "b"), one(at, "c")], chain(body(at, "d"), make(at("a")), then(at, "e"))
        ),
    }


ENDS: dict[str, Callable[[str], Any]] = {
    "a value": lambda at: echo.si([1, "a"], at=at),
    "a bare task": lambda at: plain.si(1, at=at),
    "a date": lambda at: out.si("a date", at=at),
    "an error": lambda at: fail.si("one argument", at=at),
    "an error of two arguments": lambda at: fail.si("TwoArguments", at=at),
    "a set": lambda at: out.si("a set", at=at),
    "a retry": lambda at: again.si("countdown", at=at),
    "a retry, exhausted": lambda at: again.si("exhausted with exc", at=at),
    "an ignored result": lambda at: tasks.ignored.si(1, at=at),
    "a base class with apply_async": lambda at: tasks.tenant.si(at=at),
    "options": lambda at: echo.si(1, at=at).set(queue="emails", priority=4, headers={"x": "y"}),
    "a countdown": lambda at: echo.si(1, at=at).set(countdown=0.1),
    "a task of a queue": lambda at: tasks.placed.si(1, at=at),
}
FAILS = {"an error", "an error of two arguments", "a set", "a retry, exhausted"}
COUNTED = (
    *("header of a chord", "group in a chain", "chain in a chord", "chord in a chain"),
    "chord in a chord",
)
KIND_OF_PLACE: dict[str, dict[bool, str]] = {
    **{place: {True: "ChordError"} for place in COUNTED},
    "before a group": {True: "PENDING"},
    "chain is the body": {True: "chord(..., chain(...))", False: "chord(..., chain(...))"},
}
"""By whether the task fails."""
KIND_OF_END = {
    "an error of two arguments": "exception.args",
    "a set": "EncodeError",
    "an ignored result": "ignore_result",
    "a base class with apply_async": "Task.apply_async",
}
ENDS_OF_IGNORED = {
    "first of a chain": "abc",
    "middle of a chain": "abc",
    "last of a chain": "abc",
    "member of a group": "abc",
    "body of a chord": "abc",
    "group ends a chain": "abc",
    "before a group": "abc",
    "chain in a group": "abcd",
    "chain in a chord": "abcd",
    "chain is the body": "abcde",
}
"""Where Celery waits for an ignored result for ever, this is left out."""

for end, make in ENDS.items():
    for place, canvas in places(make).items():
        if end == "an ignored result" and place not in ENDS_OF_IGNORED:
            continue
        ends = ENDS_OF_IGNORED[place] if end == "an ignored result" else None
        if end in FAILS and place == "before a group":
            ends = ["a"]
        kinds = KIND_OF_END.get(end), KIND_OF_PLACE.get(place, {}).get(end in FAILS)
        situation(
            f"{place}: {end}",
            lambda at, canvas=canvas: canvas(at).delay(),
            ends=ends,
            kind="|".join(filter(None, kinds)) or place,
        )
for place, canvas in places(lambda at: echo.si(1, at=at)).items():
    situation(
        f"options of the whole, {place}",
        lambda at, canvas=canvas: canvas(at).apply_async(
            queue="emails", priority=4, headers={"tenant": "t"}
        ),
        kind="chord.apply_async|chord(..., chain(...))" * (place == "chain is the body")
        or ("chord.apply_async" if "chord" in place else "apply_async"),
    )

# Options, by each way to send


NOW = datetime.datetime.fromtimestamp(float(os.environ["DIFFERENTIAL_NOW"]), datetime.UTC)


def soon(**delta: float) -> datetime.datetime:
    """A moment that is the same on both sides."""
    return NOW + datetime.timedelta(**delta)


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "countdown": lambda: {"countdown": 0.1},
    "countdown 0": lambda: {"countdown": 0},
    "eta": lambda: {"eta": soon(seconds=10).isoformat()},
    "eta in the past": lambda: {"eta": soon(days=-1).isoformat()},
    "expires": lambda: {"expires": 1000},
    "expires as a date": lambda: {"expires": soon(days=1).isoformat()},
    "priority": lambda: {"priority": 7},
    "queue": lambda: {"queue": "emails"},
    "routing_key": lambda: {"routing_key": "emails"},
    "time_limit": lambda: {"time_limit": 500},
    "soft_time_limit": lambda: {"soft_time_limit": 400, "time_limit": 500},
    "ignore_result=False": lambda: {"ignore_result": False},
    "headers": lambda: {"headers": {"trace": "x", "n": {"b": 1, "a": [1]}}},
    "shadow": lambda: {"shadow": "shadow"},
    "serializer": lambda: {"serializer": "json"},
    "compression": lambda: {"compression": "gzip"},
    "retry": lambda: {"retry": False},
    "argsrepr=": lambda: {"argsrepr": "(hidden)", "kwargsrepr": "{hidden}"},
    "correlation_id=": lambda: {"correlation_id": "c"},
    "reply_to": lambda: {"reply_to": "r"},
    "delivery_mode": lambda: {"delivery_mode": 1},
    "root_id": lambda: {"root_id": "r", "parent_id": "p"},
    "unknown=": lambda: {"unknown": 1},
    "add_to_parent": lambda: {"add_to_parent": False},
}
ENDS_BY_NAME = {"from a task": ["b"], "on commit": ["a"]}


def on_commit(at: At, options: dict[str, Any]) -> Any:
    with transaction.atomic():
        plain.apply_async_on_commit((1,), {"at": at("a")}, **options)


WAYS: dict[str, Callable[[At, dict[str, Any]], Any]] = {
    "apply_async": lambda at, options: echo.apply_async((1,), {"at": at("a")}, **options),
    "send_task": lambda at, options: app.send_task(echo.name, (1,), {"at": at("a")}, **options),
    "signature": lambda at, options: echo.s(1, at=at("a")).apply_async(**options),
    "set": lambda at, options: echo.s(1, at=at("a")).set(**options).delay(),
    "app.signature": lambda at, options: app.signature(
        echo.name, (1,), {"at": at("a")}, **options
    ).apply_async(),
    "from a task": lambda at, options: tasks.relay.delay(
        echo.name, [1], {"at": at("b")}, options, at=at("a")
    ),
    "on commit": on_commit,
}

for option, options in OPTIONS.items():
    for way, send in WAYS.items():
        situation(
            f"{option}, {way}",
            lambda at, send=send, options=options: send(at, options()),
            kind=option,
            ends=ENDS_BY_NAME.get(way),
            unless="a on_failure",
        )
situation(
    "eta as a datetime",
    lambda at: echo.apply_async(kwargs={"at": at("a")}, eta=soon(seconds=10)),
)
situation(
    "a naive eta",
    lambda at: echo.apply_async(kwargs={"at": at("a")}, eta=soon(seconds=10).replace(tzinfo=None)),
)
situation(
    "expires as a datetime",
    lambda at: echo.apply_async(kwargs={"at": at("a")}, expires=soon(days=1)),
)
situation("expired", lambda at: echo.apply_async(kwargs={"at": at("a")}, expires=soon(days=-1)))
situation(
    "expires before its countdown",
    lambda at: echo.apply_async(kwargs={"at": at("a")}, expires=0.3, countdown=0.6),
)
situation(
    "a task_id of one's own", lambda at: echo.apply_async(kwargs={"at": at("a")}, task_id="mine")
)
if VERSION >= (5, 7):  # before it, its result cannot be read
    situation(
        "a task_id as a UUID object",
        lambda at: echo.apply_async(kwargs={"at": at("a")}, task_id=uuid.UUID(int=2**127 + 9)),
        kind="task_id=UUID(...)",
    )
situation(
    "a task_id of a step",
    lambda at: chain(
        add.s(1, 2, at=at("a")).set(task_id="the first"),
        after.s(at=at("b")).set(task_id="the last"),
    ).delay(),
    kind="task_id",
)
situation(
    "an exchange without a queue",
    lambda at: echo.apply_async(kwargs={"at": at("a")}, exchange="other", routing_key="nowhere"),
    ends=(),
    kind="exchange",
)
situation(
    "an exchange object",
    lambda at: echo.apply_async(
        kwargs={"at": at("a")}, exchange=Exchange("default"), routing_key="default"
    ),
)
for serializer in ("pickle", "yaml"):
    situation(
        f"serializer {serializer}",
        lambda at, serializer=serializer: echo.apply_async(
            kwargs={"at": at("a")}, serializer=serializer
        ),
        ends=(),
        kind='serializer="pickle"' if serializer == "pickle" else serializer,
    )
situation(
    "link",
    lambda at: add.apply_async((1, 2), {"at": at("a")}, link=after.s(at=at("b"))),
    ends=["b"],
)
situation(
    "link of a signature",
    lambda at: _linked(add.s(1, 2, at=at("a")), after.s(at=at("b"))).delay(),
    kind="link",
    ends=["b"],
)
situation(
    "link of a chain",
    lambda at: chain(add.s(1, 2, at=at("a")), after.s(at=at("b"))).apply_async(
        link=after.s(at=at("c"))
    ),
    kind="link",
    ends=["c"],
)
situation(
    "link_error",
    lambda at: fail.apply_async(
        ("one argument",), {"at": at("a")}, link_error=out.si("a text", at=at("b"))
    ),
    ends=["b"],
)
situation(
    "link_error of a group",
    lambda at: group(fail.s("one argument", at=at("a")), add.s(1, 2, at=at("c"))).apply_async(
        link_error=out.si("a text", at=at("b"))
    ),
    kind="link_error",
    ends=["b", "a", "c"],
)
situation(
    "on_error",
    lambda at: fail.s("one argument", at=at("a")).on_error(out.si("a text", at=at("b"))).delay(),
    ends=["b"],
)
situation(
    "on_error of a chain",
    lambda at: (
        chain(fail.s("one argument", at=at("a")), after.s(at=at("c")))
        .on_error(out.si("a text", at=at("b")))
        .delay()
    ),
    kind="on_error",
    ends=["b"],
)
situation(
    "on_error of a chord",
    lambda at: (
        chord([fail.s("one argument", at=at("a")), add.s(1, 2, at=at("d"))], collect.s(at=at("c")))
        .on_error(out.si("a text", at=at("b")))
        .delay()
    ),
    kind="on_error",
    ends=["b"],
)
situation(
    "stamp",
    lambda at: _stamped(add.s(1, 2, at=at("a"))).delay(),
)
situation(
    "stamped_headers",
    lambda at: add.apply_async(
        (1, 2), {"at": at("a")}, headers={"team": "x"}, stamped_headers=["team"]
    ),
    kind="stamp",
)


def _linked(one: Any, other: Any) -> Any:
    one.link(other)
    return one


def _stamped(one: Any) -> Any:
    one.stamp(team="x")
    return one


# The options of a task

KIND_OF_TASK = {tasks.ignored: "ignore_result", tasks.tenant: "Task.apply_async"}

for task in (
    tasks.ignored,
    tasks.late,
    tasks.placed,
    tasks.routed,
    tasks.limited,
    tasks.tenant,
    tasks.named,
):
    for way, send in {
        "delay": lambda at, task: task.delay(1, at=at("a")),
        "send_task": lambda at, task: app.send_task(task.name, (1,), {"at": at("a")}),
        "signature": lambda at, task: app.signature(task.name, (1,), {"at": at("a")}).delay(),
        "queue=": lambda at, task: task.apply_async((1,), {"at": at("a")}, queue="strict"),
        "priority=": lambda at, task: task.apply_async((1,), {"at": at("a")}, priority=1),
        "a group": lambda at, task: group(task.s(1, at=at("a"))).delay(),
        "from a task": lambda at, task: tasks.relay.delay(
            task.name, [1], {"at": at("b")}, at=at("a")
        ),
    }.items():
        if (task, way) == (tasks.limited, "send_task") and VERSION < (5, 7):
            continue  # its limits hold, and its request does not show them
        ends = ["b"] if way == "from a task" else ["a"]
        situation(
            f"{task.name.rpartition('.')[2]}, {way}",
            lambda at, send=send, task=task: send(at, task),
            ends=ends,
            kind=KIND_OF_TASK.get(task) or way,
        )
situation(
    "ignore_result=True",
    lambda at: echo.apply_async((1,), {"at": at("a")}, ignore_result=True),
    ends=["a"],
    kind="ignore_result",
)
situation(
    "an ignored failure",
    lambda at: fail.apply_async(("one argument",), {"at": at("a")}, ignore_result=True),
    ends=["a"],
    kind="ignore_result",
)
situation(
    "store_errors_even_if_ignored", lambda at: tasks.stores_errors.delay(at=at("a")), ends=["a"]
)
situation("throws", lambda at: tasks.expected.delay(at=at("a")), kind="exception.args")

# Arguments

for name, send in {
    "by position": lambda at: tasks.defaults.delay(1, 5, at=at("a")),
    "by name": lambda at: tasks.defaults.delay(b=5, a=1, c=9, at=at("a")),
    "defaults": lambda at: tasks.defaults.delay(1, at=at("a")),
    "any": lambda at: tasks.everything.delay(1, "b", [2], at=at("a"), zz=1, b=2),
    "any, without": lambda at: tasks.everything.delay(at=at("a")),
    "any of one list": lambda at: tasks.everything.delay(["a", "b"], at=at("a")),
    "any, named args and kwargs": lambda at: tasks.everything.delay(
        args=[1], kwargs={"b": 2}, at=at("a")
    ),
    "by position only": lambda at: tasks.by_position.delay(1, 5, at=at("a")),
    "a decorated task": lambda at: tasks.decorated.delay(1, b=5, at=at("a")),
    "a bound task": lambda at: tasks.bound.delay(1, b=5, at=at("a")),
    "lists": lambda at: tasks.defaults.apply_async([1, 2], {"at": at("a")}),
    "args=None": lambda at: echo.apply_async(None, {"at": at("a")}),
    "missing": lambda at: tasks.defaults.delay(at=at("a")),
    "too many": lambda at: tasks.defaults.delay(1, 2, 3, 4, at=at("a")),
    "an unknown name": lambda at: tasks.defaults.delay(1, unknown=2, at=at("a")),
    "twice": lambda at: tasks.defaults.delay(1, a=2, at=at("a")),
    "by name where by position only": lambda at: tasks.by_position.delay(a=1, at=at("a")),
    "wrong, of a decorated task": lambda at: tasks.decorated.delay(at=at("a")),
    "text as args": lambda at: echo.apply_async("ab", {"at": at("a")}),
    "a dict as args": lambda at: echo.apply_async({"value": 1}, {"at": at("a")}),
    "a number as args": lambda at: echo.apply_async(7, {"at": at("a")}),
    "a set as args": lambda at: echo.apply_async({1}, {"at": at("a")}),
    "a list as kwargs": lambda at: echo.apply_async((), [("at", at("a"))]),
    "a partial signature": lambda at: add.s(1).delay(2, at=at("a")),
    "a signature with more kwargs": lambda at: tasks.everything.s(1, x=1).apply_async(
        (0,), {"at": at("a"), "x": 2}
    ),
    "an immutable signature": lambda at: add.si(1, 2, at=at("a")).delay(5),
    "a clone of a signature": lambda at: add.s(1).clone((2,), {"at": at("a")}).delay(),
    "a signature as an argument": lambda at: tasks.everything.delay(add.s(1, 2), at=at("a")),
    "a signature as a dict": lambda at: app.signature(dict(add.s(1, 2, at=at("a")))).delay(),
}.items():
    situation(f"arguments: {name}", send)
for name, send in {
    "untyped": lambda at: tasks.untyped.delay(at=at("a")),
    "send_task": lambda at: app.send_task(tasks.defaults.name, (), {"at": at("a")}),
    "a signature by name": lambda at: app.signature(
        tasks.defaults.name, (1, 2, 3), {"at": at("a")}
    ).delay(),
    "an untyped step": lambda at: chain(
        add.s(1, 2, at=at("b")), tasks.untyped.s(1, 2, 3, at=at("a"))
    ).delay(),
    "a step": lambda at: chain(
        add.s(1, 2, at=at("b")), tasks.defaults.s(1, 2, 3, at=at("a"))
    ).delay(),
    "a member": lambda at: group(add.s(1, 2, at=at("b")), tasks.defaults.s(at=at("a"))).delay(),
}.items():
    situation(f"wrong arguments: {name}", send, kind="typing=False")
situation(
    "send_task of an unknown name",
    lambda at: app.send_task("no.such.task", (1,), {"at": at("a")}),
    ends=(),
    kind='app.send_task("no.such.task")',
)

# Retries

KIND_OF_RETRY = {
    "exhausted with two arguments": "exception.args",
    "then a set": "EncodeError",
    "expires": "self.retry(expires=...)",
    "time limit": "self.retry(time_limit=...)",
}
for how in (
    *("plain", "countdown", "exc", "exhausted", "exhausted with exc", "exhausted in except"),
    *("exhausted with two arguments", "exc in except", "no retries", "no retries with exc"),
    *("one retry", "kwargs", "args", "queue", "priority", "headers", "then fails", "then a set"),
    *("expires", "time limit"),
):
    situation(
        f"retry: {how}",
        lambda at, how=how: again.delay(how, at=at("a")),
        kind=KIND_OF_RETRY.get(how, "self.retry"),
    )
    situation(
        f"retry with options: {how}",
        lambda at, how=how: again.apply_async(
            (how,), {"at": at("a")}, expires=1000, priority=2, headers={"trace": "x"}
        ),
        kind=KIND_OF_RETRY.get(how, "self.retry"),
    )
situation(
    "retry: not thrown", lambda at: again.delay("not thrown", at=at("a")), ends=["a", "a", "a"]
)
situation(
    "retry by hand",
    lambda at: tasks.retries_by_hand.delay(at=at("a")),
    ends=["a on_retry"],
    kind="raise Retry(...)",
)
for how in ("waits", "waits without exc"):
    situation(
        f"a retry {how}",
        lambda at, how=how: again.delay(how, at=at("a")),
        ends=["a on_retry"],
        kind="RETRY",
    )
    situation(
        f"a retry {how}, of a chain",
        lambda at, how=how: chain(again.s(how, at=at("a")), after.s(at=at("b"))).delay(),
        ends=["a on_retry"],
        kind="RETRY",
    )
for name, times in (("one argument", 0), ("one argument", 1), ("one argument", 5)):
    situation(
        f"autoretry {times}: {name}",
        lambda at, name=name, times=times: tasks.auto.delay(name, times, at=at("a")),
    )
for name in ("KeyError", "IndexError", "OSError", "TwoArguments", "UnicodeDecodeError"):
    situation(
        f"autoretry: {name}",
        lambda at, name=name: tasks.auto.delay(name, 5, at=at("a")),
        kind="exception.args",
    )
situation("autoretry with backoff", lambda at: tasks.backs_off.delay(1, at=at("a")))
situation("autoretry with backoff, exhausted", lambda at: tasks.backs_off.delay(5, at=at("a")))
situation("retry_kwargs", lambda at: tasks.auto_kwargs.delay(at=at("a")), kind="exception.args")
situation("retry without end", lambda at: tasks.endless.delay(4, at=at("a")))
situation("retry of an acks_late task", lambda at: tasks.late_again.delay(at=at("a")))
situation(
    "retry of an ignored task",
    lambda at: tasks.ignored_again.delay(at=at("a")),
    ends=["a"],
    kind="ignore_result",
)

# Other ends

for status in (0, 2, None, "a text"):
    situation(
        f"sys.exit({status!r})",
        lambda at, status=status: tasks.leaves.delay(status, at=at("a")),
        kind="sys.exit",
    )
situation(
    "sys.exit in a chain",
    lambda at: chain(tasks.leaves.s(2, at=at("a")), after.s(at=at("b"))).delay(),
    kind="sys.exit",
)
situation("Ignore", lambda at: tasks.ignores.delay(at=at("a")), ends=["a"])
situation(
    "Ignore in a chain",
    lambda at: chain(tasks.ignores.s(at=at("a")), after.s(at=at("b"))).delay(),
    kind="Ignore",
    ends=["a"],
)
situation("Reject", lambda at: tasks.rejects.delay(at=at("a")), ends=["a"])
situation("a soft limit that is caught", lambda at: tasks.cleans_up.delay(at=at("a")))
situation("a soft limit", lambda at: tasks.too_long.delay(at=at("a")), kind="exception.args")
situation(
    "a soft limit of apply_async",
    lambda at: tasks.works.apply_async(kwargs={"at": at("a")}, soft_time_limit=2),
    kind="exception.args",
)
situation(
    "a soft limit with autoretry",
    lambda at: tasks.too_long_twice.delay(at=at("a")),
    kind="exception.args",
)
situation(
    "a soft limit in a chain",
    lambda at: chain(tasks.cleans_up.s(at=at("a")), after.s(at=at("b"))).delay(),
)
situation("a hard limit", lambda at: tasks.far_too_long.delay(at=at("a")), kind="TimeLimitExceeded")
situation(
    "a hard limit in a chain",
    lambda at: chain(tasks.far_too_long.s(at=at("a")), after.s(at=at("b"))).delay(),
    kind="TimeLimitExceeded",
)
situation("a main thread", lambda at: tasks.has_signals.delay(at=at("a")), kind="signal.signal")

# Tasks that send

for how in ("chain", "group", "chord"):
    situation(
        f"a task sends a {how}",
        lambda at, how=how: tasks.spread.delay(how, at=at("a")),
        ends=["a", "a-1", "a-2", "a-3"],
    )
situation(
    "a task sends itself", lambda at: tasks.itself.delay(2, at=at("a")), ends=["a", "a+", "a++"]
)
situation("self.replace", lambda at: tasks.replaces.delay(at=at("a")))
situation(
    "self.replace in a chain",
    lambda at: chain(tasks.replaces.s(at=at("a")), after.s(at=at("b"))).delay(),
    kind="self.replace",
)
situation(
    "add_to_chord",
    lambda at: chord(
        [tasks.adds_to_chord.s(at=at("a")), add.s(1, 2, at=at("b"))], collect.s(at=at("c"))
    ).delay(),
)
situation(
    "request.chain",
    lambda at: chain(
        tasks.reads_chain.s(at=at("a")), after.s(at=at("b")), after.s(at=at("c"))
    ).delay(),
)
situation(
    "request.chain = None",
    lambda at: chain(tasks.cuts_chain.s(at=at("a")), after.s(at=at("b"))).delay(),
    kind="request.chain",
    ends=["a"],
)
situation("update_state", lambda at: tasks.stateful.delay("ends", at=at("a")))
situation("update_state, then a failure", lambda at: tasks.stateful.delay("fails", at=at("a")))

# More canvases

CANVASES: dict[str, Callable[[At], Any]] = {
    "a chain of one": lambda at: chain(add.s(1, 2, at=at("a"))),
    "a group of one": lambda at: group(add.s(1, 2, at=at("a"))),
    "a group of none": lambda at: group([]),
    "a chain of none": lambda at: chain(),
    "a chord of one": lambda at: chord([add.s(1, 2, at=at("a"))], collect.s(at=at("b"))),
    "a chord of none": lambda at: chord([], collect.s(at=at("b"))),
    "a chain of a group of none": lambda at: chain(
        add.s(1, 2, at=at("a")), group([]), collect.s(at=at("b"))
    ),
    "a group of groups": lambda at: group(
        group(add.s(1, 2, at=at("a")), add.s(1, 2, at=at("b"))), group(add.s(1, 2, at=at("c")))
    ),
    "a chain of chains": lambda at: chain(
        chain(add.s(1, 2, at=at("a")), add.s(3, at=at("b"))),
        chain(add.s(4, at=at("c")), after.s(at=at("d"))),
    ),
    "a chain of two groups": lambda at: chain(
        group(add.s(1, 2, at=at("a")), add.s(3, 4, at=at("b"))),
        group(collect.s(at=at("c")), collect.s(at=at("d"))),
    ),
    "two groups and a body": lambda at: chain(
        group(add.s(1, 2, at=at("a")), add.s(3, 4, at=at("b"))),
        group(collect.s(at=at("c")), collect.s(at=at("d"))),
        collect.s(at=at("e")),
    ),
    "a group is the body": lambda at: chord(
        [add.s(1, 2, at=at("a")), add.s(3, 4, at=at("b"))],
        group(collect.s(at=at("c")), collect.s(at=at("d"))),
    ),
    "a chord is the body": lambda at: chord(
        [add.s(1, 2, at=at("a"))],
        chord([after.s(at=at("b")), after.s(at=at("c"))], collect.s(at=at("d"))),
    ),
    "chords, three deep": lambda at: chord(
        [chord([chord([add.s(1, 2, at=at("a"))], collect.s(at=at("b")))], collect.s(at=at("c")))],
        collect.s(at=at("d")),
    ),
    "a group of chords": lambda at: group(
        chord([add.s(1, 2, at=at("a"))], collect.s(at=at("b"))),
        chord([add.s(1, 2, at=at("c"))], collect.s(at=at("d"))),
    ),
    "immutable steps": lambda at: chain(
        add.si(1, 2, at=at("a")), add.si(3, 4, at=at("b")), echo.si(5, at=at("c"))
    ),
    "an immutable body": lambda at: chord([add.s(1, 2, at=at("a"))], echo.si("done", at=at("b"))),
    "the pipe": lambda at: add.s(1, 2, at=at("a")) | add.s(3, at=at("b")) | after.s(at=at("c")),
    "the pipe to a group": lambda at: (
        add.s(1, 2, at=at("a")) | group(add.s(3, at=at("b")), add.s(4, at=at("c")))
    ),
    "a group, the pipe": lambda at: (
        group(add.s(1, 2, at=at("a")), add.s(3, 4, at=at("b"))) | collect.s(at=at("c"))
    ),
    "a step with options": lambda at: chain(
        add.s(1, 2, at=at("a")),
        after.s(at=at("b")).set(queue="emails", headers={"x": "y"}, countdown=0.1),
    ),
    "a step that expires": lambda at: chain(
        add.s(1, 2, at=at("a")), after.s(at=at("b")).set(expires=1000)
    ),
    "a body with options": lambda at: chord(
        [add.s(1, 2, at=at("a"))], collect.s(at=at("b")).set(queue="emails", priority=2)
    ),
    "a group of one signature": lambda at: group(
        [tasks.everything.s(n, at=at("a")) for n in range(1)]
    ),
    "a step by name": lambda at: chain(
        app.signature(add.name, (1, 2), {"at": at("a")}),
        app.signature(after.name, kwargs={"at": at("b")}),
    ),
    "two fail": lambda at: group(
        fail.s("one argument", at=at("a")), fail.s("KeyError", at=at("b"))
    ),
    "a chord, both fail": lambda at: chord(
        [fail.s("one argument", at=at("a")), fail.s("one argument", at=at("b"))],
        collect.s(at=at("c")),
    ),
    "a body that fails": lambda at: chord(
        [add.s(1, 2, at=at("a"))], fail.si("one argument", at=at("b"))
    ),
    "a chain of tenants": lambda at: chain(tasks.tenant.s(at=at("a")), tasks.tenant.s(at=at("b"))),
    "a chord of tenants": lambda at: chord(
        [tasks.tenant.s(at=at("a"))], tasks.tenant.s(at=at("b"))
    ),
    "any arguments of a step": lambda at: chain(
        add.s(1, 2, at=at("a")), tasks.everything.s(5, at=at("b"), zz=1, b=2)
    ),
    "by position in a step": lambda at: chain(
        add.s(1, 2, at=at("a")), tasks.by_position.s(5, at=at("b"))
    ),
    "a bound step": lambda at: chain(add.s(1, 2, at=at("a")), tasks.bound.s(at=at("b"))),
    "a decorated step": lambda at: chain(add.s(1, 2, at=at("a")), tasks.decorated.s(at=at("b"))),
    "map": lambda at: echo.map([1, 2, 3]),
    "starmap": lambda at: add.starmap([(1, 2), (3, 4)]),
    "map in a chain": lambda at: chain(add.s(1, 2, at=at("a")), echo.map([1, 2])),
    "chunks": lambda at: chunks(add.s(), [(n, n) for n in range(4)], 2),
    "chunks of one": lambda at: add.chunks([(1, 2)], 5),
    "chunks as a group": lambda at: add.chunks([(1, 2), (3, 4)], 1).group(),
    "map of a failure": lambda at: fail.map(["one argument"]),
}
KIND_OF_CANVAS = {
    "a chain of none": "chain()",
    "a group of groups": "group(group(...))",
    "two groups and a body": "chain(group(...), group(...))",
    "a chord is the body": "chord(..., chord(...))",
    "two fail": "exception.args",
    "a chord, both fail": "ChordError",
    "a chain of tenants": "Task.apply_async",
    "a chord of tenants": "Task.apply_async",
    "a chord of one": "chord.apply_async",
    "a group, the pipe": "chord.apply_async",
}
for name, canvas in CANVASES.items():
    situation(
        name,
        lambda at, canvas=canvas: canvas(at).delay(),
        kind=KIND_OF_CANVAS.get(name, ""),
    )
for name in (
    "a chain of one",
    "the pipe",
    "a group, the pipe",
    "a chord of one",
    "a group of groups",
):
    canvas, kind = CANVASES[name], KIND_OF_CANVAS.get(name, "")
    situation(f"{name}, called", lambda at, canvas=canvas: canvas(at).apply_async(), kind=kind)
    situation(
        f"{name}, with headers",
        lambda at, canvas=canvas: canvas(at).apply_async(headers={"tenant": "t"}),
        kind=kind,
    )
    situation(
        f"{name}, with a countdown",
        lambda at, canvas=canvas: canvas(at).apply_async(countdown=0.1),
        kind=kind,
    )
    situation(
        f"{name}, that expires",
        lambda at, canvas=canvas: canvas(at).apply_async(expires=1000),
        kind=kind,
    )
    situation(
        f"{name}, as JSON",
        lambda at, canvas=canvas: app.signature(dict(canvas(at))).delay(),
        kind=kind,
    )
situation("chord(header)(body)", lambda at: chord([add.s(1, 2, at=at("a"))])(collect.s(at=at("b"))))
situation(
    "arguments of a chain", lambda at: chain(add.s(1, at=at("a")), after.s(at=at("b"))).delay(5)
)
situation(
    "arguments of a group", lambda at: group(add.s(1, at=at("a")), add.s(2, at=at("b"))).delay(5)
)
situation(
    "keywords of a group",
    lambda at: group(tasks.everything.s(at=at("a")), tasks.everything.s(at=at("b"))).delay(5, x=1),
)
situation(
    "arguments of a chord",
    lambda at: chord([add.s(1, at=at("a"))], collect.s(at=at("b"))).apply_async((5,)),
)

# What is read of a result, once all have ended

KIND_OF_READING: dict[str, str] = {}


def pair(at: At) -> Any:
    return group(add.s(1, 2, at=at("a")), add.s(3, 4, at=at("b"))).delay()


def three(at: At) -> Any:
    return chain(add.s(1, 2, at=at("a")), add.s(3, at=at("b")), add.s(4, at=at("c"))).delay()


def chorded(at: At) -> Any:
    header = [add.s(1, 2, at=at("a")), add.s(3, 4, at=at("b"))]
    return chord(header, collect.s(at=at("c"))).delay()


def failing(at: At) -> Any:
    return group(fail.s("one argument", at=at("a")), add.s(3, 4, at=at("b"))).delay()


def one(at: At) -> Any:
    return add.delay(1, 2, at=at("a"))


def failed(at: At) -> Any:
    return fail.delay("one argument", at=at("a"))


READ: dict[str, Callable[[Any], Any]] = {
    "get()": lambda result: result.get(),
    "get(propagate=False)": lambda result: result.get(propagate=False),
    "collect()": lambda result: [(found.id, value) for found, value in result.collect()],
    "as_tuple()": lambda result: result.as_tuple(),
    "as_list()": lambda result: result.as_list(),
    "from a tuple": lambda result: result_from_tuple(result.as_tuple(), app=app).get(),
    "ready()": lambda result: result.ready(),
    "successful()": lambda result: result.successful(),
    "failed()": lambda result: result.failed(),
    "maybe_throw()": lambda result: result.maybe_throw(),
    "forget()": lambda result: result.forget(),
    "iterdeps()": lambda result: [found and found.id for found, _ in result.iterdeps()],
    "then get() again": lambda result: [result.get(), result.get()],
    "again by its id": lambda result: app.AsyncResult(result.id).state,
}
OF_A_GROUP: dict[str, Callable[[Any], Any]] = {
    "join()": lambda result: result.join(),
    "join(propagate=False)": lambda result: result.join(propagate=False),
    "iterate()": lambda result: list(result),
    "len()": len,
    "by place": lambda result: result[1].get(),
    "waiting()": lambda result: result.waiting(),
    "completed_count()": lambda result: result.completed_count(),
}
OF_ONE: dict[str, Callable[[Any], Any]] = {
    "info": lambda result: result.info,
    "status": lambda result: result.status,
    "wait()": lambda result: result.wait(),
    "traceback": lambda result: bool(result.traceback),
    "is itself": lambda result: [result == app.AsyncResult(result.id), result == result.id],
    "graph": lambda result: len(result.graph),
    "children": lambda result: result.children,
}
for text, send in {"one": one, "a failure": failed, "a chain": three, "a chord": chorded}.items():
    for way, read in {**READ, **OF_ONE}.items():
        if (text, way) in {("one", "forget()"), ("a failure", "forget()")}:
            continue
        situation(f"{way} of {text}", send, then=read, kind=KIND_OF_READING.get(way, ""))
for text, send in {"a group": pair, "a group that failed": failing}.items():
    for way, read in {**READ, **OF_A_GROUP}.items():
        situation(f"{way} of {text}", send, then=read, kind=KIND_OF_READING.get(way, ""))

# At once, in the process that sends

EAGER: dict[str, Callable[[At], Any]] = {
    "apply()": lambda at: add.apply((1, 2), {"at": at("a")}),
    "apply() of a failure": lambda at: fail.apply(("one argument",), {"at": at("a")}),
    "apply(throw=True)": lambda at: fail.apply(("one argument",), {"at": at("a")}, throw=True),
    "apply() of retries": lambda at: again.apply(("exc",), {"at": at("a")}),
    "apply() of a retry, exhausted": lambda at: again.apply(("exhausted",), {"at": at("a")}),
    "apply() of a set": lambda at: out.apply(("a set",), {"at": at("a")}),
    "apply() of an Ignore": lambda at: tasks.ignores.apply(kwargs={"at": at("a")}),
    "apply() of a chain": lambda at: chain(add.s(1, 2), add.s(3), after.s()).apply(),
    "apply() of a group": lambda at: group(add.s(1, 2), add.s(3, 4)).apply(),
    "apply() of a chord": lambda at: chord([add.s(1, 2), add.s(3, 4)], collect.s()).apply(),
    "a signature, called": lambda at: add.s(1, 2)(),
    "a chain, called": lambda at: chain(add.s(1, 2, at=at("a")), add.s(3, at=at("b")))(),
    "a task, called": lambda at: add(1, 2),
    "a bound task, called": lambda at: tasks.bound(1),
    "a failing task, called": lambda at: fail("one argument"),
}
for name, send in EAGER.items():
    situation(
        f"at once: {name}",
        send,
        ends=None if name == "a chain, called" else (),
        then=lambda result: [result.get(), result.state] if hasattr(result, "get") else result,
    )

# Hooks that end a task


def of_a_hook(hook: str, how: str) -> str:
    if hook == "before_start":  # which is as the task itself
        return {"ignores": "Ignore", "rejects": "Reject"}.get(how, "")
    kind = "on_failure()" if hook == "on_failure" else ""
    return "Reject()" if how == "rejects" else "" if how == "ignores" else kind


for hook in ("before_start", "on_success", "on_retry", "on_failure", "after_return"):
    for how in ("raises", "retries", "ignores", "rejects"):
        late = hook in ("on_success", "after_return") and how in ("raises", "ignores")
        if late and VERSION < (5, 7):
            continue  # its result stays as it was stored before
        situation(
            f"{hook} {how}",
            lambda at, hook=hook, how=how: tasks.acts.delay(hook, how, at=at("a")),
            ends=["a"] if (hook, how) == ("before_start", "ignores") else None,
            kind=of_a_hook(hook, how),
        )

# What others do with a task that waits or runs

situation(
    "revoke before it runs",
    lambda at: _revoked(echo.apply_async(kwargs={"at": at("a")}, countdown=1000)),
    ends=(),
    kind="revoke",
)
situation(
    "revoke with terminate",
    lambda at: tasks.works.delay(at=at("a")),
    during=lambda result: result.revoke(terminate=True),
    kind="revoke(terminate=True)",
)
for name in ("reports", "returns", "fails"):
    situation(
        f"revoke while it runs, and it {name}",
        lambda at, name=name: tasks.lasts.delay(name, at=at("a")),
        during=lambda result: result.revoke(),
    )
situation(
    "revoke while it runs, and it retries",
    lambda at: tasks.lasts.delay("retries", at=at("a")),
    ends=("a",),
    during=lambda result: result.revoke(),
    kind="revoke",
)
situation(
    "abort",
    lambda at: tasks.aborts.delay(at=at("a")),
    during=lambda result: AbortableAsyncResult(result.id, app=app).abort(),
    kind="AbortableTask",
)
situation(
    "update_state from outside",
    lambda at: _stored(echo.apply_async(kwargs={"at": at("a")}, countdown=1000), "PROGRESS"),
    ends=(),
    kind="store_result",
)
situation("an unknown id", lambda at: AsyncResult(str(uuid.UUID(int=2**127 + 1)), app=app), ends=())
situation(
    "store_result of an id of one's own",
    lambda at: _stored(app.AsyncResult("stored"), "SUCCESS"),
    ends=(),
    kind="store_result",
)
situation("GroupResult.save", lambda at: _saved(group(add.s(1, 2, at=at("a"))).delay()))
situation("an async def task", lambda at: tasks.waits.delay(at=at("a")), kind="async def")


def _revoked(result: Any) -> Any:
    result.revoke()
    return result


def _stored(result: Any, state: str) -> Any:
    app.backend.store_result(result.id, {"n": 1}, state)
    return result


def _saved(result: Any) -> Any:
    result.save()
    return result
