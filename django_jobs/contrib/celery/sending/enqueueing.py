"""Enqueues what a Celery app sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Never

from celery import VERSION, signals
from celery.utils import uuid
from django.utils import timezone

from .... import registry
from ....api.job_type import JobType
from ....conf import conf
from ....exceptions import EnqueueError
from ....models import Queue, Resource
from ....models.database import needing_tables
from ..messages.arguments import AS_A_PAIR, as_json, check_kinds, payload_of
from ..messages.options import (
    RetryAsked,
    check,
    check_values,
    delay_of,
    due_of,
    is_read,
    is_routed_by_name,
    message_in_celery,
    moment_of,
    priority_of,
    queue_of,
    stored,
    task_id_of,
)
from ..running.job_types import register, seed

OF_THE_JOB = ("expires", "time_limit", "soft_time_limit")
"""Options that all attempts have in common."""
OF_ONE_MESSAGE = {"countdown", "eta", "expires", "headers"}
"""Options that the next message does not share: times, and a dict that its caller may change."""
SHORTEST = 0.001
"""Seconds of the ``max_age`` of a job that has expired when it is enqueued."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a row is made of: the job type with the options of this message, and the payload."""

    job_type: JobType[..., Any]
    payload: dict[str, Any]
    headers: dict[str, Any]
    body: Any


@dataclass(slots=True)
class Collected:
    """A step of a canvas: its message, once ``apply_async`` of its task has sent it. ``upstream``
    is what the first argument is replaced with when it runs, ``after`` the places of the steps that
    are the root and the parent of its request."""

    name: str
    upstream: str | None
    after: Sequence[int | None] | None
    message: Message | None = None
    result: str = field(default_factory=lambda: f"result {uuid()} of the step before")
    """Stands for what is not there yet. It is of this step alone, so that a base class that locks
    by arguments does not take two steps for the same."""

    def without_result(self, args: Any, kwargs: Any) -> Any:
        """The arguments that ``apply_async`` sends, with None for the result."""
        check_kinds(args, kwargs)
        given = enumerate((*args, *kwargs.values()))
        places = [place for place, one in given if isinstance(one, str) and one == self.result]
        if not places:
            self.upstream = None  # the base class gives another first argument
            return args
        if places != [0] or not args:
            raise EnqueueError(
                f"{self.name}: apply_async of its base class gives the result of the step before "
                "another place than the first"
            )
        return (None, *args[1:])


collecting: ContextVar[Collected | None] = ContextVar("collecting", default=None)
"""The step whose ``apply_async`` is called."""


class NotSentYet:
    """What ``apply_async`` of a step returns to its base class."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Never:
        raise EnqueueError(
            f"{self._name}: the result of a step of a chain, a group or a chord has no {name} yet, "
            "because all steps are written together; read it of the result of the whole"
        )


def send(
    app: Any,
    name: str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    task_id: str | None = None,
    task_type: Any = None,
    result_cls: Any = None,
    add_to_parent: bool = True,
    **options: Any,
) -> Any:
    """Enqueue a job for the task with this name; return its ``AsyncResult``.

    The row is written in the caller's transaction. Takes the options of ``Celery.send_task``.
    Raises :class:`EnqueueError` for those that no row can have, and what
    :meth:`JobType.enqueue` raises.
    """
    args, kwargs = args or (), kwargs or {}
    task_id = None if task_id is None else str(task_id)
    step = collecting.get()
    if step is not None and step.name == name:
        collecting.set(None)  # what a receiver of a signal sends is no step
        if task_id is not None:
            raise EnqueueError(
                f"{name}: a step of a chain, a group or a chord cannot have a task_id; read the id "
                "of its result"
            )
        args, chord = step.without_result(args, kwargs), options.pop("chord", None)
        step.message = message_of(
            app, name, args, kwargs, options, task_type=task_type, step=step, chord=chord
        )
        return NotSentYet(name)
    parent = app.current_worker_task
    if parent is not None and task_id is not None and parent.request.id == task_id:
        _ask_for_retry(app, parent.request, name, args, kwargs, options)
        return app.AsyncResult(task_id)
    if task_id is None and signals.before_task_publish.receivers:
        task_id = uuid()  # a receiver reads it in the headers, and there is no row yet
    with needing_tables:
        message = message_of(app, name, args, kwargs, options, task_id=task_id, task_type=task_type)
    job = message.job_type.insert(message.payload)
    sent = task_id or task_id_of(job.pk)
    published(message, sent)
    result = (result_cls or app.AsyncResult)(sent)
    result.ignored = bool(options.get("ignore_result"))
    if add_to_parent and parent is not None:
        parent.add_trail(result)
    return result


def published(message: Message, task_id: str) -> None:
    signals.after_task_publish.send(
        sender=message.job_type.name,
        headers={**message.headers, "id": task_id},
        body=message.body,
        exchange="",
        routing_key=message.job_type.queue,
    )


def message_of(
    app: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    task_id: str | None = None,
    task_type: Any = None,
    step: Collected | None = None,
    chord: Any = None,
) -> Message:
    """The row of a task with these arguments and options. Raises what :func:`send` raises."""
    check_kinds(args, kwargs)
    if task_type is None and name in app.tasks:
        task_type = app.tasks[name]
        if VERSION >= (5, 7):  # whose send_task() does
            options = {**task_type._get_exec_options(), **options}
    parent = app.current_worker_task
    job_type = _job_type(app, name)
    is_plain = step is None and task_id is None and parent is None
    is_plain = is_plain and not is_read() and is_routed_by_name(app)
    last: LastSent | None = getattr(job_type.handler, "last_sent", None)
    if is_plain and last is not None and (message := last.again(args, kwargs, options)):
        return message
    given = routed(app, name, args, kwargs, options, task_type)
    if parent is not None:
        given.setdefault("root_id", parent.request.root_id or parent.request.id)
        if step is None or step.after is None:
            given.setdefault("parent_id", parent.request.id)
    queue = queue_of(app, name, given)
    if expires := given.get("expires"):
        given["expires"] = moment_of(app, expires)  # a retry does not expire later
    sent = message_in_celery(app, name, task_id, args, kwargs, {**given, "chord": chord})
    signals.before_task_publish.send(
        sender=name,
        headers=sent.headers,
        body=sent.body,
        exchange="",
        routing_key=queue,
        properties=sent.properties,
        declare=[],
        retry_policy=None,
    )
    payload, more = payload_of(job_type, *sent.body[:2])  # a receiver may change them
    of_task = job_type
    if _is_pair(payload) and job_type.signature is not AS_A_PAIR:
        job_type = replace(job_type, signature=AS_A_PAIR)  # so that it takes them, as a step too
    places = {} if step is None else {"upstream": step.upstream, "after": step.after}
    kept = stored(sent, given, **more, **places)
    delay = delay_of(given)
    chosen = job_type.using(
        queue=queue,
        priority=priority_of(app, given),
        delay=delay,
        run_at=due_of(app, given) if delay is None else None,
        idempotency_key=task_id,
        headers=as_json(kept, name, "headers"),
    )
    if limits := _limits(app, given):
        chosen = replace(chosen, **limits)
    if is_plain and not OF_ONE_MESSAGE & given.keys():
        last = LastSent(_queue(chosen), dict(options), of_task, more, _is_pair(payload), chosen)
        of_task.handler.last_sent = last  # type: ignore[attr-defined]
    return Message(chosen, payload, sent.headers, sent.body)


@dataclass(frozen=True, slots=True)
class LastSent:
    """The last message of a task without a parent and :data:`OF_ONE_MESSAGE`. One that differs from
    it by its arguments alone, as most do, is not made again: a third of a send. A ``queue`` is the
    same object for two seconds, and so is what follows from it."""

    queue: Queue | None
    options: Mapping[str, Any]
    job_type: JobType[..., Any]
    more: Mapping[str, Any]
    is_pair: bool
    chosen: JobType[..., Any]

    def again(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Message | None:
        """The message of another call; None if more than its arguments differs."""
        if options != self.options or _queue(self.chosen) is not self.queue:
            return None
        payload, more = payload_of(self.job_type, args, kwargs)
        if (more, _is_pair(payload)) != (self.more, self.is_pair):
            return None
        return Message(self.chosen, payload, {}, ())  # nobody reads its headers


def _queue(job_type: JobType[..., Any]) -> Queue | None:
    return Queue.objects.recent(job_type.queue, conf().database)


def _is_pair(payload: Mapping[str, Any]) -> bool:
    return payload.keys() == AS_A_PAIR.parameters.keys()


def routed(
    app: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    task_type: Any,
) -> dict[str, Any]:
    given = {option: value for option, value in options.items() if value is not None}
    check(name, given)
    router = app.amqp.router
    if not router.routes and not given.get("queue"):
        return given  # Celery would add the default queue
    return dict(router.route(given, given.get("route_name") or name, args, kwargs, task_type))


def _ask_for_retry(
    app: Any,
    request: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Note what the running task asks of its next attempt. Celery sends it again instead."""
    asked = request.get("retries_asked")
    if asked is None or not options.get("retries", 0) > request.retries:
        raise EnqueueError(
            f"{name}: a task cannot be replaced by another one of its id; use "
            "django_jobs.current_run().spawn(...), or send the other one and return"
        )
    kept = request.as_execution_options()
    if lost := [one for one in OF_THE_JOB if options.get(one) not in (None, kept[one])]:
        raise EnqueueError(
            f"{name}: retry() cannot change {', '.join(lost)}: the next attempt is one of the same "
            "job; send another task, and return"
        )
    check_values(name, options)
    given = {option: options.get(option) for option in ("queue", "countdown", "eta")}
    given = routed(app, name, args, kwargs, given, None)
    due = due_of(app, given)
    left = (due - timezone.now()).total_seconds() if due else 0.0
    after = max(delay_of(given) or left, 0.0)
    priority = options.get("priority")
    is_new = priority not in (None, request.delivery_info["priority"])
    asked.append(
        RetryAsked(
            after=after,
            queue=queue_of(app, name, given),
            priority=priority_of(app, options) if is_new else None,
            args=args,
            kwargs=kwargs,
            options={**options, "headers": as_json(options.get("headers") or {}, name, "headers")},
        )
    )


def _job_type(app: Any, name: str) -> JobType[..., Any]:
    """The job type of a task, with the resource of its rate limit."""
    if registry.find(name) is None and name in app.tasks:
        register(app, name)
    job_type = registry.get(name)
    for resource in job_type.resources:
        if Resource.objects.recent(resource, conf().database) is None:
            seed(app)
    return job_type


def _limits(app: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of this request that ``using()`` does not take."""
    limits = {}
    if "time_limit" in given:
        limits["timeout"] = float(given["time_limit"])
    if "expires" in given:
        left = moment_of(app, given["expires"]) - timezone.now()
        limits["max_age"] = max(left.total_seconds(), SHORTEST)
    return limits
