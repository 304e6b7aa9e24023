"""The options of ``apply_async`` as those of a job, its queue and its priority with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from celery.app.routes import MapRoute
from celery.utils.time import maybe_make_aware
from dateutil.parser import isoparse
from django.utils import timezone

from ....conf import conf
from ....domain.durations import LONGEST_AGE, LONGEST_TIMEOUT
from ....domain.numbers import HIGHEST_PRIORITY, LOWEST_PRIORITY, is_whole
from ....exceptions import EnqueueError
from ....models import Queue
from .requests import PROPERTIES, SHOWN

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
    "priority": (is_whole, "a whole number"),
    **dict.fromkeys(("time_limit", "soft_time_limit"), LIMIT),
}
"""What the value of an option has to be, unless it is false, which is none to Celery."""


def check(name: str, options: Mapping[str, Any]) -> None:
    """Raise :class:`EnqueueError` for an option that cannot be kept."""
    for option, (is_good, meaning) in RULES.items():
        if (value := options.get(option)) and not is_good(value):
            raise EnqueueError(f"{name}: {option} is {meaning}, not {value!r}")
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
    """The queue of messages with this exchange and routing key, as the declared ones say."""
    queues = app.amqp.queues
    exchange = getattr(exchange, "name", exchange)
    for queue in (queues[chosen], *queues.values()):
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
