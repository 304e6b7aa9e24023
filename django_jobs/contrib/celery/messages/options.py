"""A message as a job: the options of ``apply_async``, its queue, priority, headers and id; and the
request of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from celery import signals
from celery.app.routes import MapRoute
from celery.utils.time import maybe_make_aware
from celery.worker.request import Request
from dateutil.parser import isoparse
from django.utils import timezone

from ....conf import conf
from ....domain.numbers import (
    HIGHEST_PRIORITY,
    LONGEST_AGE,
    LONGEST_TIMEOUT,
    LOWEST_PRIORITY,
    is_whole,
)
from ....exceptions import EnqueueError
from ....models import Queue
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


INSTEAD = {
    "link": "use chain(this.s(), then.s())",
    "link_error": "use a step with when='failed' of a django_jobs.Workflow",
    "chord": "use celery.chord(header, body)",
    "chain": "use celery.chain(...)",
    "stamped_headers": "pass headers=",
}
"""Options that no row can have, and what to use."""

OF_THE_BROKER = {
    *("producer", "publisher", "connection", "router", "retry", "retry_policy", "origin"),
    *("compression", "delivery_mode", "mandatory", "immediate", "replaced_task_nesting"),
    *("route_name", "serializer", "retries", "exchange_type"),
}
"""Options that concern the message, and mean nothing for a row."""
KNOWN = (
    OF_THE_BROKER
    | PROPERTIES
    | SHOWN
    | {
        *("countdown", "eta", "expires", "queue", "exchange", "routing_key", "priority"),
        *("time_limit", "soft_time_limit", "headers", "shadow", "ignore_result"),
        *("root_id", "parent_id", "group_id", "group_index"),
    }
)


def _is_between(least: float, value: Any, most: float) -> bool:
    return isinstance(value, int | float) and least <= value <= most


def _is_time(value: Any) -> bool:
    try:
        given = isoparse(value) if isinstance(value, str) else value
    except ValueError:
        return False
    return isinstance(given, datetime) and 1 < given.year < 9999  # the time of any zone is a date


Rule = tuple[Callable[[Any], bool], str]
A_TIME = "a datetime, or its ISO text"
LIMIT: Rule = (
    lambda value: _is_between(0, value, LONGEST_TIMEOUT),
    f"a positive number of seconds, at most {LONGEST_TIMEOUT:,.0f}",
)
RULES: dict[str, Rule] = {
    "countdown": (
        lambda value: _is_between(-LONGEST_AGE, value, LONGEST_AGE),
        "a number of seconds",
    ),
    "eta": (_is_time, A_TIME),
    "expires": (
        lambda value: _is_between(-LONGEST_AGE, value, LONGEST_AGE) or _is_time(value),
        f"a number of seconds, {A_TIME}",
    ),
    "queue": (
        lambda value: isinstance(getattr(value, "name", value), str),
        "the name of a queue",
    ),
    "headers": (lambda value: isinstance(value, Mapping), "a dict"),
    **dict.fromkeys(("priority", "retries"), (is_whole, "a whole number")),
    **dict.fromkeys(("time_limit", "soft_time_limit"), LIMIT),
}
"""What the value of an option has to be, unless it is false, which is none to Celery."""


def check_values(name: str, options: Mapping[str, Any], rules: Mapping[str, Rule] = RULES) -> None:
    """Raise :class:`EnqueueError` for an option with a value that it cannot have."""
    for option, (is_good, meaning) in rules.items():
        if (value := options.get(option)) and not is_good(value):
            raise EnqueueError(f"{name}: {option} is {meaning}, not {value!r}")


def check(name: str, options: Mapping[str, Any]) -> None:
    """Raise :class:`EnqueueError` for an option that cannot be kept."""
    check_values(name, options)
    for option, instead in INSTEAD.items():
        if options.get(option):
            raise EnqueueError(f"{name}: {option} is not possible; {instead}")
    if unknown := sorted(options.keys() - KNOWN - INSTEAD.keys()):
        raise EnqueueError(
            f"{name}: {', '.join(unknown)}: no such option of a job; pass headers= for what the "
            "task shall read"
        )
    serializer = options.get("serializer", "json")
    if serializer != "json":
        raise EnqueueError(
            f"{name}: serializer is json, not {serializer}: a payload is JSON; pass primary keys, "
            "and load the objects in the task"
        )


def delay_of(options: Mapping[str, Any]) -> float | None:
    """The seconds of a ``countdown``; None without one. It prevails over an ``eta``."""
    countdown = options.get("countdown")
    return max(float(countdown), 0.0) if countdown else None


def due_of(app: Any, options: Mapping[str, Any]) -> datetime | None:
    """The ``eta``; None for at once."""
    eta = options.get("eta")
    return moment_of(app, eta) if eta else None


def moment_of(app: Any, given: Any) -> datetime:
    """A point in time: seconds from now, a datetime, or ISO text. A naive one is in UTC,
    as in Celery, also if the app has another time zone."""
    if isinstance(given, int | float):
        return timezone.now() + timedelta(seconds=given)
    parsed = isoparse(given) if isinstance(given, str) else given
    aware: datetime = maybe_make_aware(parsed, app.timezone)
    return aware


DEFAULT_QUEUE = "default"
LOWEST_OF_REDIS = 9


def queue_of(app: Any, name: str, options: Mapping[str, Any]) -> str:
    """The queue of a job. Celery's default queue is ours, unless a queue of that name exists."""
    default = app.conf.task_default_queue  # once: to read a setting of an app takes 9 µs
    chosen = routed_to(app, name, {"queue": default, **options})
    if chosen == default and Queue.objects.recent(chosen, conf().database, or_none=True) is None:
        return DEFAULT_QUEUE
    return chosen


def is_routed_by_name(app: Any) -> bool:
    """Whether no router reads the arguments."""
    return all(isinstance(one, MapRoute) for one in app.amqp.router.routes)


def routed_to(app: Any, name: str, options: Mapping[str, Any]) -> str:
    queue = options.get("queue") or app.conf.task_default_queue
    chosen = str(getattr(queue, "name", queue))
    if "exchange" in options or "routing_key" in options:
        return _bound_to(app, name, chosen, options.get("exchange"), options.get("routing_key"))
    return chosen


def _bound_to(app: Any, name: str, chosen: str, exchange: Any, routing_key: Any) -> str:
    """The queue of messages with this exchange and routing key, as the declared ones say. Celery
    adds to ``app.amqp.queues`` each name that a message has, so what it means now would depend on
    the messages before."""
    queues = app.amqp.queues
    declared = [getattr(queue, "name", queue) for queue in app.conf.task_queues or ()]
    exchange = getattr(exchange, "name", exchange)
    for queue in map(queues.__getitem__, (chosen, *declared)):
        if exchange in (None, queue.exchange.name) and routing_key in (None, queue.routing_key):
            return str(queue.name)
    raise EnqueueError(
        f"{name}: no queue of task_queues is bound to exchange {exchange!r} with the routing_key "
        f"{routing_key!r}; pass queue="
    )


def priority_of(app: Any, options: Mapping[str, Any]) -> int:
    """The priority of a job. RabbitMQ delivers the highest number first, Redis the lowest one."""
    priority: int = options.get("priority") or 0
    if not priority:
        return 0
    if _is_redis(app):
        return -min(priority, LOWEST_OF_REDIS)
    return max(min(priority, HIGHEST_PRIORITY), LOWEST_PRIORITY)


def priority_in_celery(app: Any, priority: int) -> int:
    """The priority that the message of a job has: the inverse of :func:`priority_of`."""
    return -priority if _is_redis(app) else priority


def _is_redis(app: Any) -> bool:
    return str(app.conf.broker_url or "").startswith(("redis", "sentinel"))
