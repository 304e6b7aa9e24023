"""The queue and the priority of a message as those of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....conf import conf
from ....domain.ranking import HIGHEST_PRIORITY, LOWEST_PRIORITY
from ....exceptions import EnqueueError
from ....models import Queue

DEFAULT_QUEUE = "default"
LOWEST_OF_REDIS = 9


def queue_of(app: Any, name: str, options: Mapping[str, Any]) -> str:
    """The queue of a job. Celery's default queue is ours, unless a queue of that name exists."""
    default = app.conf.task_default_queue  # once: to read a setting of an app takes 9 µs
    chosen = routed_to(app, name, {"queue": default, **options})
    if chosen == default and Queue.objects.recent(chosen, conf().database, or_none=True) is None:
        return DEFAULT_QUEUE
    return chosen


def routed_to(app: Any, name: str, options: Mapping[str, Any]) -> str:
    """The name of the queue to which Celery routes."""
    queue = options.get("queue") or app.conf.task_default_queue
    chosen = str(getattr(queue, "name", queue))
    if "exchange" in options or "routing_key" in options:
        return _bound_to(app, name, chosen, options.get("exchange"), options.get("routing_key"))
    return chosen


def _bound_to(app: Any, name: str, chosen: str, exchange: Any, routing_key: Any) -> str:
    """The queue that gets messages of this exchange and routing key, as far as the
    declared ones say."""
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
