"""What is seen of tasks, as JSON: lines of a file, which all processes append to."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.task import Context
from celery.result import ResultBase

from .celery import FOLDER

EVENTS = FOLDER / "events"
LONG = 2000
"""Characters of a text that is told by its length."""
DEEP = 210
"""Levels of a value that are told: one of the bridge's errors is an argument of itself."""
OF_A_REQUEST = (
    *("args", "kwargs", "task", "lang", "argsrepr", "kwargsrepr", "shadow", "root_id", "parent_id"),
    *("group", "group_index", "chord", "chain", "callbacks", "errbacks", "retries", "timelimit"),
    *("ignore_result", "is_eager", "called_directly", "correlation_id", "id", "children"),
    *("stamps", "stamped_headers", "replaced_task_nesting", "utc", "headers", "properties"),
)
"""Fields that are told by their value; of those below, whether they have one."""
PRESENT = ("eta", "expires", "origin", "reply_to", "hostname")
OF_ALL_HEADERS = {
    *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries"),
    *("timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result"),
    *("replaced_task_nesting", "stamped_headers", "stamps", "compression"),
}


def shown(value: Any, depth: int = 0) -> Any:
    """A value as JSON that tells its type, its order and the limits of floats."""
    if depth > DEEP:
        return "deeper"
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        if len(value) <= LONG:
            return value
        return {
            "text": len(value),
            "of": hashlib.sha256(value.encode(errors="replace")).hexdigest(),
        }
    if type(value) is float:
        return {"float": repr(value)}
    if type(value) is list:
        return [shown(one, depth + 1) for one in value]
    if type(value) is tuple:
        return {"tuple": [shown(one, depth + 1) for one in value]}
    if type(value) is dict:
        return {"dict": [[shown(key), shown(one, depth + 1)] for key, one in value.items()]}
    if isinstance(value, ExceptionInfo):
        return {"info": shown(value.exception, depth + 1), "traceback": bool(str(value))}
    if isinstance(value, BaseException):
        kind = type(value)
        return {
            "error": f"{kind.__module__}.{kind.__qualname__}",
            "args": shown(list(value.args), depth + 1),
        }
    if isinstance(value, ResultBase):
        return {"result of": value.id}
    if isinstance(value, set | frozenset):
        return {type(value).__name__: sorted(map(repr, value))}
    text = re.sub(r"0x[0-9a-f]+", "0x", repr(value))
    return {type(value).__name__: text if len(text) < LONG else len(text)}


def request_of(request: Any) -> dict[str, Any]:
    """The fields of a request."""
    found = {field: shown(getattr(request, field, "no such field")) for field in OF_A_REQUEST}
    found |= {
        field: getattr(request, field, "no such field") not in (None, "no such field")
        for field in PRESENT
    }
    headers = getattr(request, "headers", None) or {}
    own = {key: value for key, value in headers.items() if key not in OF_ALL_HEADERS}
    found["headers"] = shown(own)
    found["properties"] = bool(getattr(request, "properties", None))
    info = getattr(request, "delivery_info", None) or {}
    found |= {
        f"delivery_info.{key}": shown(info.get(key, "missing"))
        for key in ("exchange", "routing_key", "priority", "redelivered", "is_eager")
    }
    return found


def note(task_id: Any, call: str, *fields: Any, **more: Any) -> None:
    """Append a line: a hook or a signal of a task, and what it was called with."""
    told = [shown(one) for one in fields]
    line = {"id": task_id, "call": call, "fields": told, "pid": os.getpid(), **more}
    with EVENTS.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


class Reader:
    """Reads the lines."""

    def __init__(self) -> None:
        EVENTS.touch()
        self._file = EVENTS.open("rb")

    def new(self) -> list[dict[str, Any]]:
        """Those that were not read before; the last one may not yet be whole."""
        begin = self._file.tell()
        text = self._file.read()
        whole = text.rpartition(b"\n")[0]
        self._file.seek(begin + len(whole) + 1 if whole else begin)
        return [json.loads(line) for line in whole.splitlines()]


def connect_to_the_workers() -> None:
    """Note the signals that a worker sends for tasks."""

    def connect(name: str, tell: Any) -> None:
        def receive(sender: Any = None, **given: Any) -> None:
            if not str(getattr(sender, "name", "")).startswith("celery.chord_unlock"):
                tell(sender, given)

        getattr(signals, name).connect(receive, weak=False)

    def prerun(sender: Any, given: Any) -> None:
        note(
            given["task_id"],
            "task_prerun",
            list(given["args"]),
            given["kwargs"],
            at=(given["kwargs"] or {}).get("at"),
            request=request_of(given["task"].request),
            kind=sender.name,
        )

    def of_request(call: str, *names: str) -> Any:
        def tell(sender: Any, given: Any) -> None:
            request = given["request"]
            is_context = isinstance(request, Context)
            note(request.id, call, *(given.get(name) for name in names), context=is_context)

        return tell

    connect("task_received", of_request("task_received"))
    connect("task_prerun", prerun)
    connect(
        "task_postrun",
        lambda sender, given: note(
            given["task_id"], "task_postrun", given["retval"], given["state"]
        ),
    )
    connect(
        "task_success",
        lambda sender, given: note(sender.request.id, "task_success", given["result"]),
    )
    connect(
        "task_failure",
        lambda sender, given: note(
            given["task_id"],
            "task_failure",
            given["exception"],
            list(given["args"] or ()),
            given["kwargs"],
            bool(given["traceback"]),
            given["einfo"],
        ),
    )
    connect("task_retry", of_request("task_retry", "reason", "einfo"))
    connect("task_revoked", of_request("task_revoked", "terminated", "expired"))
    connect(
        "task_internal_error",
        lambda sender, given: note(given["task_id"], "task_internal_error", given["exception"]),
    )
