"""One attempt of a Celery task: its handler, what it keeps for the next, its soft time limit; and
what Celery's worker does around tasks."""

from __future__ import annotations

import signal
import socket
import time
from datetime import UTC, datetime
from functools import wraps
from types import SimpleNamespace
from typing import Any, NoReturn, cast

from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery.app import trace
from celery.exceptions import SoftTimeLimitExceeded, WorkerLostError
from celery.result import denied_join_result
from celery.utils.saferepr import saferepr

from .... import registry
from ....conf import conf
from ....domain.numbers import NEVER
from ....domain.states import JobState, RunState
from ....exceptions import Cancel, Discard, PayloadError, Retry, Snooze
from ....lifecycle.workflows.results import parents_after
from ....models import Job, Progress
from ....worker.context.attempt import NOTES
from ....worker.context.run_context import RunContext, current_run
from ....worker.timeouts.limits import ThreadTimeouts, TimeLimit
from ..messages.arguments import EXPIRES, MORE, NOTHING_MORE, arguments_of, payload_of, revived
from ..messages.options import ALL, RetryAsked, in_worker, priority_in_celery, read, task_id_of

_timeouts = ThreadTimeouts()


class SoftLimit:
    """A time after which the exception is raised once. Unlike a :class:`TimeLimit` it does not
    decide how the attempt ends: the task may catch it."""

    def __init__(self, seconds: float) -> None:
        self.ended: bool | None = None
        self._deadline = time.monotonic() + seconds

    def due(self) -> float:
        """When the exception is to be raised; never, once it was."""
        return NEVER if self.ended else self._deadline

    def expire(self, now: float) -> type[BaseException]:
        self.ended = True
        return cast(type[BaseException], SoftTimeLimitExceeded)


def limit(task: Any) -> None:
    """Let the body of ``task`` end with its soft time limit, if its request has one. Only the body:
    the exception must not arrive in Celery's code around it."""
    body = task.run
    if getattr(body, "has_soft_limit", False):
        return

    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        _, seconds = task.request.timelimit or (None, None)
        if not seconds or task.request.called_directly or task.request.is_eager:
            return body(*args, **kwargs)
        soft = cast(TimeLimit, SoftLimit(seconds))
        try:
            _timeouts.arm(soft)
            return body(*args, **kwargs)
        finally:
            _timeouts.disarm(soft)

    run.has_soft_limit = True  # type: ignore[attr-defined]
    task.run = run


ARGUMENTS = "arguments"
"""``{"payload": ..., "more": ...}`` of the next attempt, as of ``payload_of``."""
HEADERS = "headers"
"""The headers of the next attempt."""
STORED = "stored"
"""What the result backend was given last: ``status``, ``result``, ``traceback``, ``children``. It
holds while the job has as many ``failures``, or for one that had ``ended`` at this time."""


def kept(attempt: RunContext) -> dict[str, Any]:
    """What the failed attempts before have kept; nothing of those before a replay."""
    saved = attempt.saved_checkpoint if attempt._attempt.job.failures else None
    return saved if isinstance(saved, dict) else {}


def keep(attempt: RunContext, *, at_once: bool = False, **values: Any) -> None:
    """Keep more, in the checkpoint of the job; with ``at_once`` also outside of the open
    transaction. Of two calls in one attempt the second prevails."""
    attempt._keep({**kept(attempt), **values}, at_once=at_once)


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
    # That of a message is the max_age of its job, which a replay does not have.
    until = request[EXPIRES] if EXPIRES in payload.get(MORE, NOTHING_MORE) else None
    if until and attempt._attempt.job.claimed_at > datetime.fromisoformat(until).timestamp():
        in_worker(app, request)._announce_revoked("expired", False, None, True)
        raise Cancel("expired")
    if request["timelimit"][1]:
        limit(task)
    if signals.task_received.receivers:
        signals.task_received.send(sender=app, request=in_worker(app, request))
    tracer = trace.build_tracer(name, task, hostname=request["hostname"], app=app)
    with denied_join_result():
        traced = tracer(request["id"], request["args"], request["kwargs"], request)
    raised = None if traced.info is None else traced.info.retval
    # Celery has sent it by then, so it follows a task that fails too, as by an error of on_retry().
    again = raised is not None and traced.info.state in (states.RETRY, states.FAILURE)
    ends = asked.pop() if asked and again else None
    for other in asked:  # by retry(throw=False), after which the task went on
        _send_again(app, request, other)
    if ends is not None:
        _retry(attempt, request, ends, raised, {EXPIRES: until} if until else {})
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
    if (seconds := payload.get(MORE, NOTHING_MORE).get(EXPIRES)) is not None:
        due = datetime.fromtimestamp(job.available_at + seconds, UTC).isoformat()
        own[EXPIRES] = changed.get(EXPIRES, due)
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
    attempt: RunContext,
    request: dict[str, Any],
    asked: RetryAsked,
    raised: BaseException | None,
    changed: dict[str, Any],
) -> NoReturn:
    """End the attempt with the retry that the task has asked for, which does not expire later."""
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


def process_started(app: Any, kind: str, **_: Any) -> None:
    """Send what Celery sends in a process of this kind."""
    if kind != "jobworker":
        signals.worker_process_init.send(sender=None)
        return
    for fixup in filter(None, app._fixups):
        # It would close the connections of Django after each task, which our worker looks after.
        fixup.worker_fixup = SimpleNamespace(install=lambda: None)
    worker = _Worker(app)
    signals.worker_init.send(sender=worker)
    signals.worker_ready.send(sender=worker)


def process_ended(app: Any, kind: str, *, pid: int, **_: Any) -> None:
    if kind == "jobworker":
        signals.worker_shutdown.send(sender=_Worker(app))
    else:
        signals.worker_process_shutdown.send(sender=None, pid=pid, exitcode=0)


class _Worker:
    def __init__(self, app: Any) -> None:
        self.app, self.hostname = app, f"jobworker@{socket.gethostname()}"


def attempt_failed(_: Any, job_type: str, *, job_id: int, outcome: str, **fields: Any) -> None:
    """Do what Celery's main process does about a task that its time limit, the end of its process
    or a ``revoke`` has ended: these end no task in its own code."""
    known = registry.find(job_type)
    app = getattr(known and known.handler, "celery_app", None)
    expired = str(fields["error"]).startswith("Expired")
    if app is None or not (expired or outcome in ENDED_OUTSIDE):
        return
    job = Job.objects.using(conf().database).get(pk=job_id)
    if expired:
        task_revoked(app, job, expired=True)
    elif outcome == RunState.TIMED_OUT:
        _request(app, job).on_timeout(False, job.timeout)
    elif outcome == RunState.CANCELLED:
        if job.cancel_requested_at is not None:  # and not by the task, which raised Ignore
            task_revoked(app, job, terminated=job.force_requested_at is not None)
    elif job.status == JobState.DEAD:
        _request(app, job).on_failure(_raised(WorkerLostError(fields["error"])))


def task_revoked(app: Any, job: Job, *, terminated: bool = False, expired: bool = False) -> None:
    """Send the signal of a task that is not run, or not to its end."""
    signals.task_revoked.send(
        app.tasks[job.job_type],
        request=_request(app, job)._context,
        terminated=terminated,
        signum=signal.SIGTERM if terminated else None,
        expired=expired,
    )


ENDED_OUTSIDE = (RunState.TIMED_OUT, RunState.LOST, RunState.RELEASED, RunState.CANCELLED)


def _request(app: Any, job: Job) -> Any:
    task = app.tasks[job.job_type]
    return in_worker(app, request_of(task, job.payload, _attempt_of(job), []))


def _attempt_of(job: Job) -> RunContext:
    """The attempt that has ended, as far as its request needs it."""
    progress = Progress.objects.using(conf().database).filter(job=job.pk).first()
    claimed = SimpleNamespace(**{**vars(job), "available_at": job.available_at.timestamp()})
    attempt = SimpleNamespace(
        _attempt=SimpleNamespace(job=claimed),
        attempt=job.attempt,
        headers={name: value for name, value in job.headers.items() if name not in NOTES},
        idempotency_key=job.idempotency_key,
        job_id=job.pk,
        queue=job.queue,
        scheduled_for=job.scheduled_for,
        saved_checkpoint=None if progress is None else progress.checkpoint,
        children=lambda: parents_after(cast(Any, job), 0)[0],
    )
    return cast(RunContext, attempt)


def _raised(error: Exception) -> ExceptionInfo:
    try:
        raise error
    except Exception:
        return ExceptionInfo()
