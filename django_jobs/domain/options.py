"""The options of a job type and of one request: those that exist, what is meant by others; tags."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Never, TypedDict

from .concurrency import name_problem
from .hints import hint

if TYPE_CHECKING:
    from .backoff import Backoff
    from .concurrency import Concurrency


Delivery = Literal["at_least_once", "at_most_once", "exactly_once"]
OnCancel = Literal["raise", "ask"]
OnDuplicate = Literal["return", "replace", "raise"]
KeyScope = Literal["queue", "tenant"]
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a payload of one version and returns it in the next version."""


class TaskOptions(TypedDict, total=False):
    """What a Task takes of the options of :func:`django_jobs.job`, which says what they mean."""

    max_attempts: int | None
    max_crashes: int
    backoff: Backoff | None
    timeout: float | None
    silence_timeout: float | None
    max_rss: int | None
    max_age: float | timedelta | None
    retry_for: float | timedelta | None
    retry_on: Iterable[type[BaseException]] | type[BaseException]
    discard_on: Iterable[type[BaseException]] | type[BaseException]
    error_budgets: Mapping[type[BaseException], int] | None
    isolated: bool
    delivery: Delivery
    on_cancel: OnCancel
    schedulable: bool
    version: int
    upgrades: Mapping[int, Upgrade] | None
    aliases: Iterable[str]
    retention: Mapping[str, Any] | None
    resources: Iterable[str] | str
    concurrency: Concurrency | None
    tenant: str | Callable[[dict[str, Any]], str | None] | None
    tags: Iterable[str] | str


class JobOptions(TaskOptions, total=False):
    """The options of :func:`django_jobs.job`."""

    name: str | None
    queue: str
    priority: int


class TaskRequestOptions(TypedDict, total=False):
    """The options that ``using()`` of a Task takes. :meth:`JobType.using` says what they mean."""

    idempotency_key: str | None
    key_scope: KeyScope | None
    unique_for: float | timedelta | None
    on_duplicate: OnDuplicate | None
    max_attempts: int | None
    headers: Mapping[str, Any] | None
    tenant: str | None
    concurrency_key: str | None
    resources: Iterable[str] | str | None
    tags: Iterable[str] | str | None


class RequestOptions(TaskRequestOptions, total=False):
    """The options of :meth:`JobType.using`."""

    queue: str | None
    priority: int | None
    run_at: datetime | None
    delay: float | timedelta | None


TASK_OPTIONS = tuple(TaskOptions.__annotations__)
JOB_OPTIONS = ("name", "queue", "priority", *TASK_OPTIONS)
TASK_USING_OPTIONS = tuple(TaskRequestOptions.__annotations__)
USING_OPTIONS = ("queue", "priority", "run_at", "delay", *TASK_USING_OPTIONS)
FOREIGN_OPTIONS = {
    **dict.fromkeys(("max_retries", "retries", "retry"), "max_attempts"),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), "timeout"),
    **{"countdown": "delay", "eta": "run_at", "expires": "max_age", "acks_late": "delivery"},
    **{"autoretry_for": "retry_on", "job_key_mode": "on_duplicate"},
    **dict.fromkeys(("task_id", "job_id", "job_key", "unique_key"), "idempotency_key"),
    **{"queueing_lock": "idempotency_key", "labels": "tags", "tag": "tags"},
    **dict.fromkeys(("depends_on", "needs", "requires", "upstream"), "after"),
    **{"args": "payload", "kwargs": "payload", "tz": "timezone"},
}
"""Option names of other job queues, each with the name used here."""
NAMES_OF_TASKS = {"queue": "queue_name", **dict.fromkeys(("run_at", "delay"), "run_after")}
"""Options of jobs, each with its name for Django's Tasks."""
INSTEAD_OF_OPTIONS = {
    "bind": "call current_run() in the handler",
    **dict.fromkeys(
        ("rate_limit", "rate_limits", "rate", "burst", "throttle"),
        "name a resource, resources=('stripe',), and give it a rate in DJANGO_JOBS['RESOURCES']",
    ),
    **dict.fromkeys(
        ("breaker", "circuit_breaker", "retry_budget", "global_limit"),
        "it is an option of a resource: resources=('stripe',), and DJANGO_JOBS['RESOURCES']",
    ),
    **dict.fromkeys(
        ("max_concurrency", "max_concurrent", "concurrency_limit", "limits_concurrency", "limit"),
        "give concurrency=Concurrency('account:{account_id}', limit=2) for each key, or a queue or "
        "a resource its max_concurrency",
    ),
    **dict.fromkeys(
        ("concurrency_key", "sequence", "partition", "partition_key", "lock", "on_conflict"),
        "concurrency=Concurrency('account:{account_id}') of @job lets one job of a key run at a "
        "time",
    ),
    **dict.fromkeys(
        ("tenant_id", "tenant_key", "group", "group_key", "fairness_key", "weight"),
        "tenant='{account_id}' of @job shares a queue among tenants; their weights are rows of "
        "Tenant",
    ),
    **dict.fromkeys(
        ("interval", "seconds", "minutes", "hours", "every", "cron", "crontab", "schedule"),
        "schedule('nightly', job_type, every=3600), or cron='0 2 * * *', says when a job is due",
    ),
    "unique": "an idempotency_key is unique while its job is live, with unique_for for a time",
    **dict.fromkeys(
        ("replace", "debounce"), "using(on_duplicate='replace') replaces a job that has not started"
    ),
    "ttl": "unique_for keeps a key unique; max_age of @job limits how long a job may wait",
    "ignore_result": "what the handler returns is the result; return None to keep none",
}
"""Options of other job queues without an equivalent here, each with what to do instead."""
INSTEAD_OF_ATTRIBUTES = {
    **dict.fromkeys(
        ("delay", "apply_async", "defer", "configure", "send", "send_with_options", "schedule"),
        "write {call}.enqueue(...); for a delay, {call}.using(delay=5).enqueue(...)",
    ),
    **dict.fromkeys(
        ("defer_async", "adelay"), "write await {call}.aenqueue(...), with using(delay=5) before it"
    ),
    **dict.fromkeys(
        ("batch_defer", "map", "starmap", "chunks"), "write {call}.enqueue_many([{{...}}, {{...}}])"
    ),
    **dict.fromkeys(
        ("s", "si", "signature", "subtask", "message", "pipeline"),
        "write {call}.step(...), for a chain() or a group()",
    ),
    "retry": "raise Retry(after=5) in the handler",
    "update_state": "write current_run().progress(0.5) in the handler",
    "AsyncResult": "write Job.objects.get(pk=...) and read its status and its result",
}
"""Attributes of the tasks of other job queues, each with what to write here instead."""


class HandlerSignature(inspect.Signature):
    """The signature of a handler. Celery's tasks have a method of this name."""

    __slots__ = ()

    def __call__(self, *args: object, **kwargs: object) -> Never:
        raise TypeError(
            "signature has the parameters of the handler and takes no arguments; write "
            "enqueue(...), or for jobs that follow one another the steps of a Workflow"
        )


def check_known(
    options: Collection[str],
    where: str,
    known: Collection[str] = USING_OPTIONS,
    decorator: Literal["@job", "@task"] = "@job",
) -> None:
    """Raise ``TypeError`` for an unknown option, and suggest the option that was probably meant.

    ``known`` is the options of the ``decorator`` or those of ``using()``.
    """
    names, declared = {}, JOB_OPTIONS
    if decorator == "@task":
        names, declared = NAMES_OF_TASKS, TASK_OPTIONS
    for option in options:
        if option in known:
            continue
        ours = FOREIGN_OPTIONS.get(option, option)
        ours = names.get(ours, ours)
        meant = "it" if ours == option else repr(ours)
        if option in INSTEAD_OF_OPTIONS:
            end = f"; {INSTEAD_OF_OPTIONS[option]}"
        elif ours not in known and ours in USING_OPTIONS:
            end = f"; {meant} is an option of using()"
        elif ours not in known and ours in declared:
            end = f"; {meant} is an option of {decorator}"
        else:
            end = hint(ours, known, f"known are: {', '.join(known)}")
        raise TypeError(f"{where}: there is no option {option!r}{end}")


SEVERAL = {
    "aliases": 'former names, such as ("shop.send_mail",)',
    "resources": 'names, such as ("stripe",)',
    "tags": 'texts, such as ["vip"]',
}
"""Options that take texts, of which one may stand alone."""


def several(given: Any, option: str, where: str) -> tuple[Any, ...]:
    """What one of :data:`SEVERAL` has. Raises ``TypeError`` for no texts, and for a dict, whose
    values would be lost."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"{where}: {option} are {SEVERAL[option]}, not {given!r}")
    return tuple(given)


def of_a_request(arguments: Iterable[str]) -> str:
    """The end of a message about arguments that no handler takes, if they are options of
    ``using()``: ``; 'delay' is an option of using()``. Empty if none is."""
    meant = [FOREIGN_OPTIONS.get(argument, argument) for argument in arguments]
    ours = [repr(option) for option in meant if option in USING_OPTIONS]
    return f"; {ours[0]} is an option of using(), before enqueue()" if ours else ""


def no_attribute(job_type: Any, name: str) -> AttributeError:
    """The error for a missing attribute.

    For an attribute that a task of another job queue has, its message includes what to write.
    """
    problem = f"{type(job_type).__name__!r} object has no attribute {name!r}"
    if name in INSTEAD_OF_ATTRIBUTES:
        problem += f"; {INSTEAD_OF_ATTRIBUTES[name].format(call=job_type.handler.__name__)}"
    return AttributeError(problem, name=name, obj=job_type)


LONGEST_TAG = 100
"""Characters."""
MOST_TAGS = 20
"""Of one job."""


def tag_problem(tag: Any) -> str | None:
    if problem := name_problem(tag, LONGEST_TAG):
        return problem
    return "begins or ends with a space" if tag != tag.strip() else None


def combined(*tags: Iterable[str]) -> tuple[str, ...]:
    """All tags, sorted and each once."""
    return tuple(sorted({tag for some in tags for tag in some}))


# Without control characters, JSON quotes a string as PostgreSQL does in an array.
def as_text(tags: Sequence[str]) -> str | None:
    return f"{{{json.dumps(tags, ensure_ascii=False)[1:-1]}}}" if tags else None


def of_text(text: str) -> list[str]:
    tags: list[str] = json.loads(f"[{text[1:-1]}]")
    return tags
