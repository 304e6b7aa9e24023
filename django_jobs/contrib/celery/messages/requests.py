"""The headers and the id of a message as those of a job, and the request of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from celery import signals
from celery.worker.request import Request

from .arguments import revived

HEADER = "celery"
"""The header of a job under which those of Celery are stored."""

ONE, ALL = "one", "all"
"""The result of the step before, or a list of those of all steps before."""

OF_A_REQUEST = {
    *("shadow", "eta", "expires", "group", "group_index", "timelimit"),
    *("root_id", "parent_id", "ignore_result", "retries"),
}
"""Headers of Celery that a job keeps."""
OF_THE_ROW = {
    *("lang", "task", "id", "argsrepr", "kwargsrepr", "origin"),
    *("replaced_task_nesting", "stamps", "stamped_headers"),
}
"""Those that its row has in other columns, or that nobody reads. All others were given by the
caller, or by a receiver of ``before_task_publish``."""
OF_CELERY = OF_A_REQUEST | OF_THE_ROW
SHOWN = {"argsrepr", "kwargsrepr"}
"""How the caller wants the arguments to be shown."""
UNREAD = {**dict.fromkeys(SHOWN, ""), "origin": "-"}
"""Of a message that no receiver reads. To make them takes longer than all its rest."""
PROPERTIES = {
    *("correlation_id", "reply_to", "app_id", "message_id", "user_id", "type", "timestamp")
}
"""Options that a request has as properties of its message."""


@dataclass(slots=True)
class RetryAsked:
    """What a running task asks of its retry. Where Celery sends the task again, it is added to
    ``retries_asked`` of the request. ``priority`` is that of a job, None for an unchanged one;
    ``options`` are those with which Celery sends."""

    after: float
    queue: str
    priority: int | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


def is_read() -> bool:
    """Whether a receiver of signals reads what is sent."""
    return bool(signals.before_task_publish.receivers or signals.after_task_publish.receivers)


def message_in_celery(
    app: Any,
    name: str,
    task_id: str | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """The message that Celery would send: its headers, properties and body."""
    unread = {} if is_read() else UNREAD
    message = app.amqp.as_task_v2(task_id, name, args, kwargs, **{**unread, **options})
    message.headers.update(options.get("headers") or {})
    message.properties.update({key: options[key] for key in PROPERTIES & options.keys()})
    return message


def stored(message: Any, options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The headers of a job: those of the caller, and under :data:`HEADER` those of Celery that say
    something, and ``more``:

    - ``by_position`` and ``orders`` of :func:`payload_of`
    - ``upstream``: what the first of them is replaced with, :data:`ONE` or :data:`ALL`
    - ``after``: the places in the run of the steps that are the root and the parent
    """
    headers = message.headers
    properties = {key: options[key] for key in PROPERTIES & options.keys() if options[key]}
    given = {key: value for key, value in headers.items() if key in OF_A_REQUEST}
    more |= {key: options[key] for key in SHOWN & options.keys()}
    own = {**given, **more, "properties": properties, "chord": message.body[2]["chord"]}
    own = {key: value for key, value in own.items() if _says_more(key, value)}
    if own.get("root_id") == headers["id"]:
        own.pop("root_id", None)
    others = {key: value for key, value in headers.items() if key not in OF_CELERY}
    return {**others, HEADER: own} if own else others


def _says_more(key: str, value: Any) -> bool:
    """Whether it is not what a request has without it. The first ``group_index`` is 0."""
    return (key == "group_index" and value is not None) or (bool(value) and value != [None, None])


def in_worker(app: Any, request: Mapping[str, Any]) -> Request:
    """What Celery's worker makes of a message of this request, around the run of the task."""
    delivery = request["delivery_info"]
    message = SimpleNamespace(headers={}, body=None, delivery_info=delivery, properties=delivery)
    body: Any = (request["args"], request["kwargs"], {})
    hostname = request["hostname"]
    return Request(message, app=app, hostname=hostname, headers=request, body=body, decoded=True)


def read(headers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The headers of the caller, and those of Celery, of a job."""
    others = revived(dict(headers))
    own = others.pop(HEADER, None)
    return others, own if isinstance(own, dict) else {}


PREFIX = int.from_bytes(b"djob", "big") << 96 | 0x8000 << 64 | 0x8 << 60
"""Of a UUID of version 8, whose bits have no meaning but ours. The last 60 are the job's id."""
LARGEST = (1 << 60) - 1


def task_id_of(job_id: int) -> str:
    """The id of the task that is the job with this id. Columns of packages that store ids of tasks
    take it, because it is a UUID."""
    return str(UUID(int=PREFIX | job_id))


def job_id_of(task_id: str) -> int | None:
    """The id of the job, or None for an id that the caller has chosen."""
    try:
        number = UUID(task_id).int
    except ValueError:
        return None
    return number & LARGEST if number & ~LARGEST == PREFIX else None
