"""Registers Celery tasks as job types."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from .... import registry
from ....api.job_type import JobType
from ....api.validation import LONGEST_NAME
from ....conf import conf
from ....domain.numbers import is_whole
from ....domain.numbers import rate_of as read_rate
from ....domain.states import RunState
from ....logs.receivers import reported_by
from ....models import Resource
from ..messages.arguments import CODING, TaskType, signature_of
from ..messages.options import DEFAULT_QUEUE, RULES, check_values, priority_of, routed_to
from .attempts import WITHOUT_END, run

OF_CELERY = ("celery.map", "celery.starmap")
"""Of Celery's own tasks those that a signature sends."""
LONGEST_RESOURCE = 100
"""Characters of a resource's name."""
LIMITS = ("time_limit", "soft_time_limit")
DECLARED = {
    "max_retries": (
        lambda value: is_whole(value) and 0 <= value < WITHOUT_END,
        f"a whole number below {WITHOUT_END:,}, or None for no limit",
    ),
    **{option: RULES[option] for option in ("queue", "priority", "expires", *LIMITS)},
}
"""What the value of an option of a task has to be."""


def register(app: Any, name: str) -> None:
    """Register the task of ``app`` with this name as a job type of the same name. Raises
    ``ValueError`` for a name that no job type may have, which the database would refuse unnamed,
    and for an option that means nothing."""
    if len(name) > LONGEST_NAME:
        raise ValueError(
            f"the task {name} has a name of {len(name)} characters, and a job type of at most "
            f"{LONGEST_NAME}; pass name="
        )
    if not name.startswith("celery.") or name in OF_CELERY:
        registry.register(job_type_of(app, name))
        reported_by[name] = _is_reported
        if rate := rate_of(app.tasks[name]):
            registry.note_rate(resource_of(name), rate)


def _is_reported(end: Mapping[str, Any]) -> bool:
    """Whether Celery's own code has logged this end, or knows that it is none to be reported, as
    one in ``throws``. It has not been asked where the arguments did not fit."""
    expired = str(end["error"]).startswith("Expired")
    return end["exception"] is not None or end["outcome"] != RunState.FAILED or expired


def rate_of(task: Any) -> str | None:
    """The rate of a task as that of a resource; None without a limit. Raises ``ValueError`` for
    what is none."""
    rate = task.rate_limit
    if not rate or str(rate).partition("/")[0].strip() == "0":
        return None
    text = str(rate) if "/" in str(rate) else f"{rate}/s"
    try:
        read_rate(text)
    except ValueError as error:
        raise ValueError(f"{task.name}: rate_limit {error}") from None
    return text


def resource_of(name: str) -> str:
    """The name of the resource that limits the rate of the task."""
    return name[-LONGEST_RESOURCE:]


def seed(app: Any) -> None:
    """Create the resources of rate limits that do not exist yet. Tasks start one by one at this
    rate, as in Celery, but on all workers together."""
    rates = {name: rate for name, task in list(app.tasks.items()) if (rate := rate_of(task))}
    Resource.objects.seed(
        {resource_of(name): _limited_by(resource_of(name), rate) for name, rate in rates.items()},
        conf().database,
    )


def _limited_by(resource: str, rate: str) -> Mapping[str, Any]:
    """The options of the resource, with the rate of the task unless the setting names one."""
    given = conf().resources.get(resource, {})
    return given if "rate" in given else {"rate": rate, "burst": 1, **given}


def job_type_of(app: Any, name: str) -> JobType[..., Any]:
    """The job type of a task.

    ``acks_late`` decides the delivery: without it a message is acknowledged before the task begins,
    so that a lost attempt is not repeated. A failure is final unless the task asks for a retry. So
    is a time-out, unless its message would stay unacknowledged.
    """
    task = app.tasks[name]
    limits = {option: getattr(task, option) or app.conf[f"task_{option}"] for option in LIMITS}
    check_values(name, {**{one: getattr(task, one, None) for one in DECLARED}, **limits}, DECLARED)

    def handler(**payload: Any) -> Any:
        return run(app, name, payload)

    handler.__module__, handler.__qualname__ = task.__module__, name.rpartition(".")[2]
    handler.__name__, handler.__doc__ = handler.__qualname__, task.__doc__
    handler.celery_app, handler.raised_at_timeout = app, SystemExit  # type: ignore[attr-defined]
    handler.coding, handler.annotated = CODING, _declared_run(task)  # type: ignore[attr-defined]
    return TaskType(
        name=name,
        handler=handler,
        signature=signature_of(_declared_run(task)),
        queue=_queue(app, task),
        priority=priority_of(app, {"priority": task.priority}),
        max_age=expires_of(task),
        max_attempts=_attempts(task),
        timeout=limits["time_limit"],
        delivery="at_least_once" if task.acks_late else "at_most_once",
        discard_on=(Exception,),
        on_cancel="ask",
        resources=(resource_of(name),) if rate_of(task) else (),
        schedulable=True,
    )


def expires_of(task: Any) -> float | None:
    """The seconds after which a message of the task expires; None for a task without, or with a
    point in time."""
    expires = getattr(task, "expires", None)
    return float(expires) if expires and isinstance(expires, int | float) else None


def _queue(app: Any, task: Any) -> str:
    """The queue that the task declares. A schedule has it, unless it names another one."""
    queue = getattr(task, "queue", None)
    name = routed_to(app, task.name, {"queue": queue})
    return DEFAULT_QUEUE if name == app.conf.task_default_queue else name


def _attempts(task: Any) -> int:
    """The attempts that may end with a time-out, which is the only failure that the task does not
    decide itself: one, unless Celery would deliver the message again."""
    if task.acks_late and is_acked_on_timeout(task):
        return 1
    return WITHOUT_END if task.max_retries is None else (task.max_retries or 0) + 1


def is_acked_on_timeout(task: Any) -> bool:
    """Whether the message of a task that exceeded its time limit is acknowledged. Before Celery 5.7
    there is one setting for this and for failures."""
    return bool(getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout))


def _declared_run(task: Any) -> Any:
    """The body of a task. What retries it, limits it or traces it, such as Sentry, puts another one
    on the instance, which takes any arguments."""
    return inspect.getattr_static(type(task), "run").__get__(task, type(task))
