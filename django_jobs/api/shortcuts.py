"""Declares job types with :func:`job`; enqueues by name; cancels a job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from django.utils.translation import gettext_noop

from .. import registry
from ..domain.options import (
    JOB_OPTIONS,
    USING_OPTIONS,
    JobOptions,
    RequestOptions,
    check_known,
    several,
)
from ..domain.payload import a_kind
from ..exceptions import OperationRefused, PayloadError
from ..models import Job, WorkflowRun
from ..models.database import needing_tables
from .gating import name_rule, resource_names
from .job_type import JobType
from .payloads import UpgradeRaised
from .validation import (
    MAPPINGS,
    check_declaration,
    declared_name,
    exception_classes,
    mapping,
    signature_of,
    tag_names,
)

P = ParamSpec("P")
R = TypeVar("R")

READ: dict[str, Callable[[Any, str, str], Any]] = {
    **dict.fromkeys(("retry_on", "discard_on"), exception_classes),
    **dict.fromkeys(MAPPINGS, mapping),
    "aliases": several,
    "resources": lambda given, option, where: resource_names(given, where),
    "tenant": name_rule,
    "tags": lambda given, option, where: tag_names(given, where),
}
"""Makes of an option of ``@job``, its name and where it is given what the job type has."""


@overload
def job(function: Callable[P, R], /) -> JobType[P, R]: ...
@overload
def job(**options: Unpack[JobOptions]) -> Callable[[Callable[P, R]], JobType[P, R]]: ...
def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Declare a function as the handler of a job type.

    Returns a :class:`JobType` in place of the function; calling it calls the function. All options
    are keywords.

    - ``name``: the name in the database, by default ``<app_label>.<function>``.
    - ``queue`` and ``priority`` (-100 to 100) of the jobs.
    - ``max_attempts``: failures and time-outs after which a job is dead. ``max_crashes``: crashes
      in a row after which it is dead. ``backoff``: a :class:`Backoff`, the waits between attempts.
    - ``timeout``: seconds that an attempt may take. Then :class:`TimeLimitExceeded` is raised in
      the handler where possible, and its process is killed a second later. ``silence_timeout``:
      seconds that an attempt may run without a report of progress.
    - ``max_age``: seconds or a timedelta. No attempt starts later than this after the enqueue.
    - ``retry_for``: seconds or a timedelta. No retry starts later than this after the first attempt
      began; a delay before it does not count.
    - ``retry_on``: an exception class, or several. If given, only these are retried, in addition to
      time-outs, deadlocks, serialization failures and lost database connections. ``discard_on``:
      exceptions that make a job dead at once. ``error_budgets``: a dict of exception classes and
      numbers; an error of the class makes the job dead once it has this many failures.
    - ``isolated``: each attempt runs alone in a child process. ``max_rss``: megabytes of memory
      that this process may use; implies ``isolated``.
    - ``delivery``: with ``"at_most_once"`` a failed or lost attempt is never retried. With
      ``"exactly_once"`` the handler's writes to the jobs' database and the success of the job
      commit in one transaction. The default is ``"at_least_once"``.
    - ``on_cancel``: with ``"raise"``, the default, a cancel is raised in a running handler: as
      :class:`Cancelled` by the methods of its run, and at each ``await``. With ``"ask"`` only its
      ``should_stop()`` says so.
    - ``schedulable``: schedules and jobs that are created in the admin may use the job type.
    - ``version``: the version of its payloads. ``upgrades``: a dict of older versions and
      functions, each of which returns a payload in the next version. ``aliases``: earlier names,
      whose jobs the handler runs too.
    - ``retention``: limits its dead jobs, as ``{"dead": {"age": "180d", "number": 100}}``. It
      replaces the queue's retention of dead jobs.
    - ``resources``: names of :class:`~django_jobs.models.Resource`. ``concurrency``: a
      :class:`Concurrency`, the limit of jobs with the same key. ``tenant``: the name of the tenant,
      a text with arguments in braces or a function of the payload; None is no tenant. A job waits
      as ``blocked`` until all of them have room.
    - ``tags``: one or several texts by which the jobs are found.

    Raises ``TypeError`` or ``ValueError`` at import if the handler or an option cannot work. For
    the options that ``using()`` takes too, the error is an :class:`EnqueueError`, which is a
    ``ValueError``.
    """

    def declare(handler: Callable[..., Any]) -> JobType[..., Any]:
        declared = checked(handler, name, options)
        registry.register(declared, registry.importing(handler.__module__))
        return declared

    return declare if function is None else declare(function)


def checked(
    handler: Callable[..., Any], name: str | None, options: Mapping[str, Any]
) -> JobType[..., Any]:
    """The job type of :func:`job`, which nothing knows yet. Raises what :func:`job` raises."""
    signature = signature_of(handler)
    default = registry.default_name(handler.__module__, handler.__name__)
    chosen = declared_name(name, default)
    where = f"@job {chosen}"
    check_known(options, where, JOB_OPTIONS)
    made = {
        option: read(options[option], option, where)
        for option, read in READ.items()
        if option in options
    }
    fixed: dict[str, Any] = {"name": chosen, "handler": handler, "signature": signature}
    declared: JobType[..., Any] = JobType(**fixed, **{**options, **made})
    check_declaration(declared)
    return declared


def enqueue(
    job_type: str | JobType[..., Any],
    payload: Mapping[str, Any] | None = None,
    **options: Unpack[RequestOptions],
) -> Job:
    """Enqueue by name, for code that cannot import the handler.

    ``options`` are those of :meth:`JobType.using`. Raises :class:`UnknownJobType`, and what
    :meth:`JobType.enqueue` raises.
    """
    configured = _chosen(job_type, options, "enqueue({}, {})")
    return configured.insert(configured.bind(**_arguments(payload, configured.name)))


def enqueue_many(
    job_type: str | JobType[..., Any],
    payloads: Iterable[Mapping[str, Any]],
    *,
    idempotency_keys: Iterable[str | None] | None = None,
    **options: Unpack[RequestOptions],
) -> list[int]:
    """:meth:`JobType.enqueue_many` by name."""
    configured = _chosen(job_type, options, "enqueue_many({}, [{}, ...])")
    return configured.enqueue_many(payloads, idempotency_keys=idempotency_keys)


def cancel(job_id: int, *, reason: str = "", force: bool = False) -> bool:
    """Cancel a job that has not begun, or ask a running one to stop. With ``force`` it is stopped:
    an exception is raised in its handler, and if that does not end it, its process is killed.

    ``reason`` is stored with the job. Returns False if the job has ended or does not exist. Raises
    ``TypeError`` unless ``job_id`` is a whole number.
    """
    if not isinstance(job_id, int) or isinstance(job_id, bool):
        hint = "; pass its pk" if isinstance(job_id, Job) else ""
        raise TypeError(f"cancel takes the id of a job, a whole number, not {job_id!r}{hint}")
    if not 0 < job_id < 2**63:
        return False
    from ..lifecycle.operations import jobs as job_operations

    with needing_tables:
        operation = job_operations.stop if force else job_operations.cancel
        return bool(operation([job_id], reason=reason).done)


def replay_problem(job: Job) -> str | None:
    """Why the current code cannot run ``job``, or None. A replay is refused for this reason, which
    people read who may not see payloads: it is without the message of an error of an upgrade."""
    try:
        payload = job.payload
    except (ValueError, RecursionError) as error:  # enqueue did not write this row
        return f"its payload cannot be read ({type(error).__name__})"

    def taken() -> Iterable[str]:
        from ..lifecycle.workflows.results import taken_arguments

        return () if job.workflow_run_id is None else taken_arguments([job.pk])[job.pk]

    return payload_problem(job.job_type, job.payload_version, payload, taken, brief=True)


def retry_run(run: WorkflowRun, reason: str) -> None:
    """As :meth:`~django_jobs.models.WorkflowRun.retry`, which calls it."""
    from ..lifecycle.operations import workflows

    with needing_tables:
        refused = workflows.retry([run.pk], check=replay_problem, reason=reason).refused
    if refused:
        raise OperationRefused(f"run {run.pk} of {run.name}: {refused[run.pk]}")


def stored_payload_problem(
    job_type: str,
    version: int,
    text: str,
    taken: Callable[[], Iterable[str]] = tuple,
    *,
    brief: bool = False,
) -> str | None:
    """As :func:`payload_problem`, for the JSON of a row that may not be of an enqueue."""
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"its payload cannot be read ({type(error).__name__})"
    return payload_problem(job_type, version, payload, taken, brief=brief)


def payload_problem(
    job_type: str,
    version: int,
    payload: Any,
    taken: Callable[[], Iterable[str]] = tuple,
    *,
    brief: bool = False,
) -> str | None:
    """Why the current code cannot run a job with this stored payload, or None. ``taken`` returns
    the arguments of a step that are results of others; it is called if the handler takes more than
    the payload has. If ``brief``, without the message of an error of an upgrade, which may quote
    values."""
    registered = registry.find(job_type)
    if registered is None:
        return f"no handler is registered for {job_type!r}"
    if not isinstance(payload, dict):
        return gettext_noop("its payload is not a dict of arguments")
    try:
        upgraded = registered.upgraded(payload, version)
    except PayloadError as error:
        reason = error.brief if brief and isinstance(error, UpgradeRaised) else error
        return f"its payload cannot be read: {reason}"
    try:
        if registered.takes_more_than(upgraded):  # as the worker asks
            upgraded = upgraded | dict.fromkeys(taken())
        registered.bind(**upgraded)
    except (PayloadError, TypeError) as error:  # TypeError: an upgrade may return any key
        return str(error)
    return None


def _chosen(
    job_type: str | JobType[..., Any], options: RequestOptions, call: str
) -> JobType[..., Any]:
    """The job type with these options.

    Raises ``TypeError`` if they include arguments of the handler. The message shows the ``call``
    that was meant, without values, which may be secret.
    """
    if callable(job_type) and not isinstance(job_type, JobType):
        raise TypeError(
            f"{a_kind(job_type)} is no job type: put @job before it, "
            f"or pass the name of the job type"
        )
    registered = registry.get(job_type) if isinstance(job_type, str) else job_type
    arguments = [name for name in options if name not in USING_OPTIONS]
    if arguments and registered.signature.parameters.keys() >= set(arguments):
        payload = ", ".join(f"{name!r}: ..." for name in arguments)
        meant = call.format(repr(registered.name), f"{{{payload}}}")
        raise TypeError(f"{registered.name}: the arguments go into a dict: {meant}")
    return registered.using(**options)


def _arguments(payload: Mapping[str, Any] | None, where: str) -> Mapping[str, Any]:
    if payload is None:
        return {}
    if not isinstance(payload, Mapping):
        raise PayloadError(f"{where}: payload is {a_kind(payload)}, not a dict of arguments")
    for key in payload:
        if not isinstance(key, str):
            raise PayloadError(f"{where}: payload: key {key!r} is {a_kind(key)}, not a string")
    return payload
