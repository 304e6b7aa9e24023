"""Declares schedules in code with :func:`schedule`, writes them to the table, and validates what a
schedule enqueues, with the same rules as any other request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Never

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from .. import registry
from ..conf import conf
from ..domain.cron import DST_POLICIES
from ..domain.errors import ErrorReport
from ..domain.options import check_known
from ..domain.payload import encode, is_same
from ..domain.policies import CatchUp, Change, Overlap, in_utc
from ..domain.schedules import check_every
from ..exceptions import HookError, JobsError, PayloadError, QueueFull
from ..lifecycle.backlog import demand_room, demand_room_at_gates
from ..lifecycle.job_columns import NewJobs
from ..models import Schedule
from ..models.database import has_todays_columns
from .hooks import request_with_hooks
from .job_type import JobType

if TYPE_CHECKING:
    from ..lifecycle.schedules.firing import JobRequest

FIELDS = (
    *("job_type", "payload", "queue", "priority", "cron", "every", "timezone", "starts_at"),
    *("ends_at", "enabled", "jitter_seconds", "dst", "overlap", "overlap_limit", "catch_up"),
    *("catch_up_limit", "pause_after_dead", "excluded_dates", "max_jobs"),
)
"""The fields that code sets on a declared schedule. The pause is left to operators."""

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "payload": ((Mapping,), "a dict of arguments"),
    **dict.fromkeys(("name", "queue", "cron"), ((str,), "text")),
    "timezone": ((str,), "text such as 'Europe/Paris'"),
    **dict.fromkeys(("dst", "overlap", "catch_up"), ((str,), "text")),
    **dict.fromkeys(("priority", "overlap_limit", "pause_after_dead"), ((int,), "a whole number")),
    "max_jobs": ((int,), "a whole number"),
    "excluded_dates": ((list, tuple, set, frozenset), "a list of dates"),
    "jitter_seconds": ((int, float), "a number of seconds"),
    "catch_up_limit": ((int, float), "a number"),
    **dict.fromkeys(("starts_at", "ends_at"), ((datetime,), "a datetime")),
    "enabled": ((bool,), "True or False"),
}
POLICIES: dict[str, tuple[str, ...]] = {
    "dst": DST_POLICIES,
    "overlap": tuple(policy.value for policy in Overlap),
    "catch_up": tuple(policy.value for policy in CatchUp),
}
LIMITS = {
    "overlap_limit": ("overlap", {"queue_all": "jobs that may wait", "allow": "jobs at once"}),
    "catch_up_limit": ("catch_up", {"at_most": "a number of jobs", "window": "seconds"}),
}
"""The limits of policies: for which ones each is, and what it counts."""
OPTIONAL = {"priority", "overlap_limit", "pause_after_dead", "catch_up_limit"} | {
    *("starts_at", "ends_at", "max_jobs")
}


def schedule(
    name: str,
    job_type: str | JobType[..., Any],
    *,
    cron: str = "",
    every: float | timedelta | None = None,
    timezone: str = "UTC",
    payload: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    enabled: bool = True,
    jitter_seconds: float = 0.0,
    dst: str = "once",
    overlap: str = "skip",
    overlap_limit: int | None = None,
    catch_up: str = "latest",
    catch_up_limit: float | None = None,
    pause_after_dead: int | None = None,
    excluded_dates: Iterable[date] = (),
    max_jobs: int | None = None,
    **unknown: Never,  # refused below, with what to write
) -> None:
    """Declare a schedule in ``jobs.py``; the next ``migrate`` writes it to the table.

    It is due by ``cron`` (five fields, in ``timezone``) or ``every`` (seconds or a timedelta,
    counted from ``starts_at`` or else from 1970). ``dst``: ``"once"``, ``"skip"`` or ``"twice"``.
    ``overlap``, while its last job is still live: ``"skip"``, ``"queue_one"``, ``"queue_all"``,
    ``"allow"`` or ``"cancel"``. ``catch_up``, for missed due times: ``"latest"``, ``"skip"``,
    ``"at_most"`` (``catch_up_limit`` jobs) or ``"window"`` (the last ``catch_up_limit`` seconds).
    ``queue`` and ``priority``: None is what the job type declares. It is not due on
    ``excluded_dates``, at most 366 dates in ``timezone``, and ends after ``max_jobs`` jobs.

    Raises ``TypeError`` or ``ValueError`` at import for a schedule that can never be fired.
    """
    options = dict(locals())
    del options["name"], options["job_type"], options["unknown"]
    check_known(unknown, f"schedule {name!r}", options)
    registry.register_schedule(name, columns_of(name, job_type, options))


def columns_of(
    name: str, job_type: str | JobType[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The columns of a declared schedule with these options of :func:`schedule`; the others have
    their defaults. Raises what :func:`schedule` raises."""
    where = f"schedule {name!r}"
    given: dict[str, Any] = {"name": name, "job_type": _named(job_type, where), **options}
    for option, none in (("payload", {}), ("queue", "")):
        if given.get(option) is None:
            given[option] = none
    _check_types(given, where)
    _check_limits(given, where)
    every = given.get("every")
    try:
        for option in ("name", "job_type"):
            encode(given[option], max_bytes=1_000, name=option)
        # Tuples become lists, as in the row read back; otherwise the two would always differ.
        text = encode(dict(given["payload"]), max_bytes=conf().max_payload_bytes)
        given["payload"] = json.loads(text)
        if isinstance(job_type, JobType):
            job_type.bind(**given["payload"])
        if every is not None:
            given["every"] = check_every(every)
        # As they are read back: else they may equal no time of a row, and migrate writes each time.
        for bound in ("starts_at", "ends_at"):
            if given.get(bound) is not None:
                given[bound] = in_utc(given[bound])
        given["excluded_dates"] = sorted(set(given.get("excluded_dates", ())))
        row = Schedule(**given)
        row.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        problems = "; ".join(
            f"{key}: {' '.join(messages)}" for key, messages in error.message_dict.items()
        )
        raise ValueError(f"{where}: {problems}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return {field: getattr(row, field) for field in FIELDS}


def synchronise(alias: str) -> None:
    """Write the declared schedules to the table.

    A schedule that has not changed is not written, so that due times that passed during a
    deployment are still fired; one with an error is written, because the deployment may have
    corrected it. A schedule that is no longer declared is disabled and keeps its history, if its
    job type belongs to an app of this project. Several processes may call it at once.
    """
    from ..lifecycle.operations.schedules import changed

    if not has_todays_columns(Schedule, alias):
        return  # migrated back to before the table or one of its columns
    declared = declared_rows()
    with transaction.atomic(using=alias):
        new = [Schedule(name=name, **fields) for name, fields in sorted(declared.items())]
        Schedule.objects.using(alias).bulk_create(new, ignore_conflicts=True)
        rows = Schedule.objects.using(alias).filter(Q(declared=True) | Q(name__in=declared))
        for row in rows.select_for_update(no_key=True).order_by("id"):
            _take_over(row, declared.get(row.name), alias)
        changed()


def declared_rows() -> dict[str, dict[str, Any]]:
    """The columns that ``migrate`` writes, by the name of the schedule."""
    rows = {}
    for name, fields in registry.schedules().items():
        # The current version: the code that declares a schedule declares its handler too.
        job_type = registry.find(fields["job_type"])
        version = 1 if job_type is None else job_type.version
        rows[name] = {**fields, "payload_version": version, "declared": True}
    return rows


def is_ours(job_type: str) -> bool:
    """Whether an app of this project has this job type. Projects may share the jobs' database."""
    return registry.find(job_type) is not None or job_type.partition(".")[0] in apps.app_configs


def _take_over(row: Schedule, fields: Mapping[str, Any] | None, alias: str) -> None:
    if fields is None:
        if row.enabled and is_ours(row.job_type):
            row.enabled = False
            row.save(using=alias, update_fields=["enabled"])
        return
    alike = all(is_same(getattr(row, field), value) for field, value in fields.items())
    if not alike or row.error:
        for field, value in fields.items():
            setattr(row, field, value)
        row.save(using=alias)


def _named(job_type: str | JobType[..., Any], where: str) -> str:
    if isinstance(job_type, str):
        return job_type
    if not isinstance(job_type, JobType):
        raise TypeError(f"{where}: job_type is a job type or its name, not {job_type!r}")
    registered = registry.find(job_type.name)
    if (
        registered is not None
        and registered.handler is job_type.handler
        and registered is not job_type
    ):
        raise ValueError(
            f"{where}: using() is for one request; give queue and priority to the schedule itself"
        )
    return job_type.name


def _check_types(options: Mapping[str, Any], where: str) -> None:
    for option, (kinds, meant) in KINDS.items():
        if option not in options:
            continue
        value = options[option]
        if value is None and option in OPTIONAL:
            continue
        odd = isinstance(value, bool) and bool not in kinds
        if odd or not isinstance(value, kinds):
            raise TypeError(f"{where}: {option} is {meant}, not {value!r}")
        if option in POLICIES and value not in POLICIES[option]:
            *others, last = map(repr, POLICIES[option])
            raise ValueError(f"{where}: {option} is {', '.join(others)} or {last}, not {value!r}")
        if isinstance(value, datetime) and value.utcoffset() is None:
            raise ValueError(
                f"{where}: {option} needs a time zone, and {value!r} has none: "
                "use timezone.make_aware(...)"
            )
    for day in options.get("excluded_dates", ()):
        if isinstance(day, datetime) or not isinstance(day, date):
            raise TypeError(f"{where}: excluded_dates are dates, not {day!r}")


def _check_limits(options: Mapping[str, Any], where: str) -> None:
    """Raise ``ValueError`` for a limit that its policy lacks, and for one that would never act."""
    for limit, (option, counted) in LIMITS.items():
        policy, is_given = options.get(option), options.get(limit) is not None
        if is_given and policy not in counted:
            known = " and ".join(f"{option}={one!r}" for one in counted)
            raise ValueError(f"{where}: {limit} is for {known}, and {option} is {policy!r}")
        if option == "catch_up" and policy in counted and not is_given:
            raise ValueError(f"{where}: {option}={policy!r} needs {limit}, {counted[policy]}")


class Requests:
    """The requests of several schedules. Each combination of job type, queue and priority is
    validated once, and so is the room in its queue; that at the gates of a job for each."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[JobType[..., Any], NewJobs | QueueFull]] = {}

    def of(
        self,
        schedule: Schedule,
        change: Change | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> JobRequest:
        """What ``schedule`` enqueues, or what it does by ``change``, or with ``payload``.

        Raises ``JobsError`` if its job type or queue is unknown, its queue or a gate is full, its
        payload does not fit the handler, or a hook raises.
        """
        from ..lifecycle.schedules.firing import JobRequest

        job_type = registry.get(schedule.job_type)
        given, version = schedule.payload, schedule.payload_version
        if change is not None and change.payload_json is not None:
            given, version = _decoded(job_type, change.payload_json), change.payload_version
        if payload is not None:
            given, version = payload, job_type.version
        if not isinstance(given, dict):
            raise PayloadError(f"{schedule.job_type}: the payload is not a dict of arguments")
        try:
            arguments = job_type.upgraded(given, version)
        except PayloadError as error:
            raise PayloadError(f"{schedule.job_type}: the payload: {error}") from None
        try:
            job_type.check_payload(arguments)
        except TypeError as error:  # an upgrade returned a key that is not text
            raise PayloadError(f"{schedule.job_type}: the payload: {error}") from None
        text = job_type.encoded_payload(arguments)
        options = schedule.job_type, schedule.queue, schedule.priority
        if options not in self._known:
            configured = job_type.using(queue=schedule.queue or None, priority=schedule.priority)
            try:
                known = configured.request()
                demand_room(known, 1)
                self._known[options] = configured, known
            except QueueFull as full:
                self._known[options] = configured, full
        configured, new = self._known[options]
        if isinstance(new, QueueFull):
            raise new
        if conf().hooks:
            new = _with_hooks(configured, arguments)
        gates = configured.gates_of(arguments)
        demand_room_at_gates([(new, gates)])
        return JobRequest(new, text, gates)


def _decoded(job_type: JobType[..., Any], payload: str) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{job_type.name}: the payload: {error}") from None


def _with_hooks(job_type: JobType[..., Any], arguments: dict[str, Any]) -> NewJobs:
    """The request with what the hooks write, in a savepoint: the transaction is that of other
    schedules too. Raises :class:`HookError` for what a hook raises."""
    try:
        with transaction.atomic(using=conf().database):
            return request_with_hooks(job_type, arguments)
    except JobsError:
        raise
    except Exception as error:
        raise HookError(
            f"{job_type.name}: a hook raised {ErrorReport.of(error).summary}"
        ) from error


def request_of(schedule: Schedule, payload: Mapping[str, Any] | None = None) -> JobRequest:
    """:meth:`Requests.of` for one schedule, with its own payload or with this one."""
    return Requests().of(schedule, payload=payload)
