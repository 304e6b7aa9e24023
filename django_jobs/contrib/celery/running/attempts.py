"""One attempt of a Celery task: the handler of its job type."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import Any, NoReturn

from celery import signals, states
from celery.app import trace
from celery.result import denied_join_result
from celery.utils.saferepr import saferepr

from .... import registry
from ....conf import conf
from ....exceptions import Cancel, Discard, PayloadError, Retry, Snooze
from ....models import Job
from ....worker.context.run_context import RunContext, current_run
from ..messages.arguments import (
    arguments_of,
    payload_of,
    revived,
)
from ..messages.places import priority_in_celery
from ..messages.requests import ALL, RetryAsked, in_worker, read
from ..messages.task_ids import task_id_of
from .checkpoints import ARGUMENTS, HEADERS, STORED, keep, kept
from .soft_limits import limit

WITHOUT_END = 2**31 - 1
"""Attempts of a job whose retries Celery counts itself."""
IGNORED = "ignored by the task"
"""What the reason of a job begins with whose task raised ``Ignore``."""


def run(app: Any, name: str, payload: dict[str, Any]) -> Any:
    """Run a task as Celery's worker does, with its request, signals and hooks; return its result.

    Raises what the task has raised, or the fate that it has asked for.
    """
    task, attempt = app.tasks[name], current_run()
    if attempt is None:  # the job type was called, and not enqueued
        args, kwargs = arguments_of(registry.get(name), payload)
        return task(*args, **kwargs)
    asked: list[RetryAsked] = []
    request = request_of(task, payload, attempt, asked)
    if request["timelimit"][1]:
        limit(task)
    if signals.task_received.receivers:
        signals.task_received.send(sender=app, request=in_worker(app, request))
    tracer = trace.build_tracer(name, task, hostname=request["hostname"], app=app)
    with denied_join_result():
        traced = tracer(request["id"], request["args"], request["kwargs"], request)
    raised = None if traced.info is None else traced.info.retval
    ends = (
        asked.pop() if asked and raised is not None and traced.info.state == states.RETRY else None
    )
    for other in asked:  # by retry(throw=False), after which the task went on
        _send_again(app, request, other)
    if ends is not None:
        _retry(attempt, request, ends, raised)
    if traced.info is not None:
        if traced.info.state == states.REJECTED:
            in_worker(app, request).on_failure(traced.retval, return_ok=True)
        _keep(attempt, request, {})
        _end(task, traced.info.state, raised)
    return request["_outcome"].get("result")


def task_id_of_run(attempt: RunContext) -> str:
    """The id of the task that runs: the key that was given as one, and not that of a due time."""
    key = attempt.idempotency_key
    return task_id_of(attempt.job_id) if key is None or attempt.scheduled_for else key


def hostname(host: str) -> str:
    """The name of a worker on this machine, as a task reads it."""
    return f"jobworker@{host}"


def request_of(
    task: Any, payload: dict[str, Any], attempt: RunContext, asked: list[RetryAsked]
) -> dict[str, Any]:
    """The request of the attempt, as a worker of Celery makes it from a message."""
    job = attempt._attempt.job
    headers, own = read(attempt.headers)
    more: dict[str, Any] = {one: own.pop(one) for one in ("by_position", "orders") if one in own}
    upstream = own.pop("upstream", None)
    after, properties = own.pop("after", None), own.pop("properties", {})
    changed = kept(attempt)
    if HEADERS in changed:
        headers = revived(changed[HEADERS])
    if arguments := changed.get(ARGUMENTS):
        payload, more = arguments["payload"], arguments["more"]
        upstream = None  # the kept arguments have it
    args, kwargs = arguments_of(registry.get(task.name), payload, more)
    if upstream is not None:
        args = [_results_before(attempt, upstream), *args[1:]]
    task_id = task_id_of_run(attempt)
    given, settings = own.pop("timelimit", None) or (None, None), task.app.conf
    if job.failures or (after and "eta" in own):  # it was due at another time than the message said
        own["eta"] = datetime.fromtimestamp(job.available_at, UTC).isoformat()
    if after:
        own = _steps_before(job.workflow_run_id, *after) | own
    delivery_info = {
        "exchange": "",
        "routing_key": job.queue,
        "priority": priority_in_celery(task.app, job.priority),
        "redelivered": job.attempt > job.failures + 1,
    }
    properties = {
        "correlation_id": task_id,
        "reply_to": "",
        "priority": delivery_info["priority"],
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": job.queue},
        **properties,
    }
    return {
        **headers,
        "root_id": task_id,
        "timelimit": [
            given[0] or task.time_limit or settings.task_time_limit,
            given[1] or task.soft_time_limit or settings.task_soft_time_limit,
        ],
        "lang": "py",
        "argsrepr": saferepr(tuple(args), task.app.amqp.argsrepr_maxsize),
        "kwargsrepr": saferepr(kwargs, task.app.amqp.kwargsrepr_maxsize),
        **own,
        "id": task_id,
        "correlation_id": properties["correlation_id"],
        "reply_to": properties["reply_to"],
        "properties": properties,
        "stamps": {},
        "task": task.name,
        "args": args,
        "kwargs": kwargs,
        "retries": job.failures + own.get("retries", 0),
        "headers": headers,
        "hostname": hostname(socket.gethostname()),
        "delivery_info": delivery_info,
        "retries_asked": asked,
        "_outcome": {},  # what the result backend is given: the result, or STORED
    }


def _steps_before(run: int | None, root: int, parent: int) -> dict[str, str]:
    """The ids of the first step of the chain, and of the one before, from their places."""
    steps = Job.objects.using(conf().database).filter(workflow_run=run).order_by("pk")
    ids = list(steps.values_list("pk", flat=True)[root : parent + 1])
    return {"root_id": task_id_of(ids[0]), "parent_id": task_id_of(ids[-1])}


def _results_before(attempt: RunContext, upstream: str) -> Any:
    """The result of the step before, or those of all."""
    results = [revived(child.result) for child in attempt.children()]
    return results if upstream == ALL else results[0]


def _send_again(app: Any, request: dict[str, Any], asked: RetryAsked) -> None:
    """Send a retry as another job, because the task continued. Celery gives it the same id."""
    options = {
        **asked.options,
        **{"countdown": asked.after, "eta": None, "queue": asked.queue, "chord": None},
    }
    app.send_task(request["task"], asked.args, asked.kwargs, **options)


def _retry(
    attempt: RunContext, request: dict[str, Any], asked: RetryAsked, raised: BaseException | None
) -> NoReturn:
    """End the attempt with the retry that the task has asked for."""
    changed: dict[str, Any] = {}
    if list(asked.args) != list(request["args"]) or asked.kwargs != request["kwargs"]:
        job_type = registry.get(request["task"])
        payload, more = payload_of(job_type, asked.args, asked.kwargs)
        changed[ARGUMENTS] = {"payload": payload, "more": more}
    if revived(asked.options["headers"]) != request["headers"]:  # by the task, or by who traces it
        changed[HEADERS] = asked.options["headers"]
    _keep(attempt, request, changed)
    queue = None if asked.queue == attempt.queue else asked.queue
    reason = "asked for by the task" if raised is None else str(raised)
    fate = Retry(
        asked.after, reason, queue=queue, priority=asked.priority, max_attempts=WITHOUT_END
    )
    raise fate from getattr(raised, "exc", None) or raised


def _keep(attempt: RunContext, request: dict[str, Any], changed: dict[str, Any]) -> None:
    """Keep what has changed for the next attempt, and the exception, unless that is too large."""
    stored = request["_outcome"].get(STORED)
    try:
        if changed or stored:
            keep(attempt, **changed, **({STORED: stored} if stored else {}))
    except PayloadError:
        if changed:
            keep(attempt, **changed)


def _end(task: Any, state: str, raised: Any) -> NoReturn:
    if state == states.REJECTED:
        if raised.requeue and task.acks_late:  # others are acknowledged before they begin
            raise Snooze(0, f"rejected, to be requeued: {raised.reason}")
        raise Discard(f"rejected by the task: {raised.reason}")
    if state == states.IGNORED:
        raise Cancel(f"{IGNORED}: {raised}")
    raise raised
