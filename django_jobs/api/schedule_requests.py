"""Validates what a schedule enqueues, with the same rules as any other request."""

from __future__ import annotations

import json
from typing import Any

from django.db import transaction

from .. import registry
from ..conf import conf
from ..domain.changes import Change
from ..domain.errors import ErrorReport
from ..exceptions import HookError, JobsError, PayloadError, QueueFull
from ..lifecycle.backlog import demand_room, demand_room_at_gates
from ..lifecycle.job_columns import NewJobs
from ..lifecycle.schedules.firing import JobRequest
from ..models import Schedule
from .hooks import request_with_hooks
from .job_type import JobType


class Requests:
    """The requests of several schedules. Each combination of job type, queue and priority is
    validated once, and so is the room in its queue; that at the gates of a job for each."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[JobType[..., Any], NewJobs | QueueFull]] = {}

    def of(self, schedule: Schedule, change: Change | None = None) -> JobRequest:
        """What ``schedule`` enqueues, or what it does by ``change``.

        Raises ``JobsError`` if its job type or queue is unknown, its queue or a gate is full, its
        payload does not fit the handler, or a hook raises.
        """
        job_type = registry.get(schedule.job_type)
        given, version = schedule.payload, schedule.payload_version
        if change is not None and change.payload_json is not None:
            given, version = _decoded(job_type, change.payload_json), change.payload_version
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
        payload = job_type.encoded_payload(arguments)
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
        return JobRequest(new, payload, gates)


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


def request_of(schedule: Schedule) -> JobRequest:
    """:meth:`Requests.of` for one schedule."""
    return Requests().of(schedule)
