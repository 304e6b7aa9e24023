"""The columns of a job that statements write for a new one and read of a claimed one.

Every insert and every claim takes its list of columns from here. A column that an insert does not
name begins with its default in the database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import models
from psycopg.adapt import Transformer

from .. import registry
from ..domain.gates import JUST_WAITS, NO_TENANT, Gates, parse
from ..domain.options import of_text
from ..models import Job
from ..models.database import jobs_connection
from ..models.queue import OnFull

if TYPE_CHECKING:
    from ..domain.decisions import Facts

QueuePosition = tuple[float, int]
"""The place of a job in its queue: ``(rank, id)``."""

LIVE_TABLE = "django_jobs_job_live"

IN_LIVE = "status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running', 'dead')"
"""Of a statement that finds jobs by their ids and may end them, which moves them to the history:
the planner reads the partition of the live and the dead jobs alone. Other statements name it: with
the parent, a poll of the queues took 1.7 times as long to plan."""

READABLE = "coalesce((%(types)s::jsonb -> job.job_type::text)::integer, -1) >= job.payload_version"
"""Of a statement about jobs that a worker with these types can run, in these versions. The planner
estimates an array name by name: with one of 200, the fastest settle of 100 jobs took 9.1 ms; with
this 8.4, and 8.2 without either."""

IN_LINE = f"""job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates = line.gates
          AND job.job_type NOT IN (
              SELECT job_type FROM django_jobs_quarantine WHERE lifted_at IS NULL)
          AND {READABLE}"""
"""Of a statement that makes jobs of a ``line`` ready. A job that is quarantined, or that no worker
can run, keeps its place and is passed over."""

ADMITTED = "status = 'ready', reason = '', ready_at = clock_timestamp()"
"""What an admission sets. A job without gates is ready when it is due, so nothing is written."""

AT_THE_GATES = "CASE WHEN job.gates IS NULL THEN 'ready' ELSE 'blocked' END"
"""The status of a job that may start but for its gates."""

OPTIONAL = "django_jobs.optional"
"""A header of a step that is skipped where it would be dead."""

PASSED = f"(job.workflow_run_id IS NOT NULL AND jsonb_exists(job.headers, '{OPTIONAL}'))"
DROPPED = f"""status = CASE WHEN job.workflow_run_id IS NULL OR {PASSED} THEN 'cancelled'
                  ELSE 'dead' END,
    skipped = CASE WHEN {PASSED} THEN 'passed' END"""
"""Of the SET for a job that the system drops, not a person. A step has failed, so that its run
fails with it and undoes what succeeded, unless it is optional."""

MOST_REPLAYS = 100
"""Replays that the headers of a job keep, the last ones; its ``replays`` counts all. Each settle
writes the headers with the row."""

REPLAYED = f"""failures = 0, crashes = 0, replays = job.replays + 1, reason = '',
    finished_at = NULL, cancel_requested_at = NULL, force_requested_at = NULL, expires_at = NULL,
    retry_until = NULL, result = NULL, awaits = NULL,
    headers = jsonb_set(job.headers, '{{replays}}', jsonb_path_query_array(
        coalesce(job.headers -> 'replays', '[]'::jsonb) || jsonb_build_object(
            'at', clock.now, 'by', %(by)s::text, 'why', %(why)s::text,
            'after_attempt', job.attempt, 'died_of', job.reason),
        '$[last - {MOST_REPLAYS - 1} to last]'))"""
"""Of the SET of a replay at ``clock.now``. The old runs stay and the attempt number keeps counting,
so a late write about an old attempt still matches nothing."""

AT_ITS_RUN_AT = "django_jobs.run_at"
"""A header of a step that waits for others: its due time is that of its request, and no delay."""

FATE = """CASE WHEN job.status = 'succeeded' OR job.skipped = 'passed' THEN 'succeeded'
             WHEN job.skipped = 'unneeded' THEN 'unneeded' ELSE 'failed' END"""
"""The fate of a step that has ended: ``fate_of`` of ``domain.workflows`` in SQL."""


def as_array(items: Iterable[object]) -> str:
    """Numbers or words as the text of an array: the driver would inspect each item of a list."""
    return f"{{{','.join(map(str, items))}}}"


# psycopg takes ten times as long for a list: more than PostgreSQL for a third of the insert.
def text_array(texts: Sequence[str | None]) -> str:
    return "{" + ",".join("NULL" if text is None else _quoted(text) for text in texts) + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


Fence = tuple[int, int, int]
"""``(job, attempt, worker)``. No two attempts, of one job or of several, have the same."""


@dataclass(frozen=True, kw_only=True)
class NewJobs:
    """What the jobs of one request have in common: columns, and what the others are computed from.

    ``delay``, ``timeout``, ``max_age`` and ``unique_for`` are in seconds; ``backoff`` and
    ``headers`` are JSON text that was checked, ``tags`` the text of an array. ``max_backlog`` and
    ``on_full`` are those of the queue, and so is ``is_watched``. ``max_waiting`` has the limits of
    resources and tenants by kind and name, of those that have one.
    """

    queue: str
    job_type: str
    weight: float
    payload_version: int = 1
    priority: int = 0
    run_at: datetime | None = None
    delay: float = 0.0
    max_attempts: int = 5
    max_crashes: int = 3
    backoff: str | None = None
    timeout: float | None = None
    at_most_once: bool = False
    max_age: float | None = None
    headers: str = "{}"
    tags: str | None = None
    unique_for: float | None = None
    max_backlog: int | None = None
    on_full: str = OnFull.RAISE
    is_watched: bool = False
    max_waiting: Mapping[str, Mapping[str, int]] = field(default_factory=dict, compare=False)

    @cached_property
    def is_delayed(self) -> bool:
        """Whether the jobs are due later, so that they are not ready at once."""
        return self.run_at is not None or self.delay > 0

    def has_limits(self, gates: Iterable[Gates | None]) -> bool:
        """Whether the queue has a ``max_backlog``, or a gate of these ``max_waiting``."""
        return self.max_backlog is not None or any(
            one is not None and bool(self.max_waiting or one.max_waiting) for one in gates
        )

    # Not computed for each job: a request serves all jobs of its type for two seconds.
    @cached_property
    def parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PARAMETERS}

    def filled(self, statement: str) -> str:
        """``statement`` with the same as text, and with ``payload`` as its one parameter."""
        known = self._filled.get(statement)
        if known is None:
            as_literal = Transformer(jobs_connection().connection).as_literal
            literals = {
                name: as_literal(value).decode().replace("%", "%%")
                for name, value in self.parameters.items()
            }
            known = statement % {**literals, "payload": "%(payload)s"}
            self._filled[statement] = known
        return known

    @cached_property
    def _filled(self) -> dict[str, str]:
        return {}

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The values of :data:`COMMON_COLUMNS`; those of JSON as text."""
        return {name: getattr(self, name) for name in COMMON_COLUMNS}

    @cached_property
    def initial(self) -> dict[str, Any]:
        """The value with which each column of a job begins; those of JSON as text."""
        return {**NEW, **self.columns}

    @cached_property
    def documents(self) -> list[tuple[str, str]]:
        """The columns of JSON that have a value, each with its text."""
        return [(name, self.columns[name]) for name in JSON_COLUMNS if self.columns[name]]

    def decoded(self) -> Iterator[tuple[str, Any]]:
        """The same with new values, as a model instance has them: no two jobs share one."""
        for name, text in self.documents:
            yield name, decode(text)[0]
        if self.tags is not None:
            yield "tags", of_text(self.tags)


decode = json.JSONDecoder().raw_decode
"""For text without white space around it, three times as fast as ``json.loads``."""

NEW = {
    field.attname: None if field.null else field.get_default()
    for field in Job._meta.concrete_fields
}
"""The initial value of each column of a job, in the model's order."""

PARAMETERS = [one.name for one in fields(NewJobs) if one.compare]
COMMON_COLUMNS = [name for name in PARAMETERS if name in NEW]
"""The columns that have one value in all jobs of a request."""
JSON_COLUMNS = [
    name for name in COMMON_COLUMNS if isinstance(Job._meta.get_field(name), models.JSONField)
]

COMMON = {name: f"%({name})s" for name in COMMON_COLUMNS}
"""Those columns, each with its expression in a statement that takes the parameters."""


def gate_values(gates: Gates | None) -> dict[str, Any]:
    """The columns that follow from the gates of a job, with their values; those of JSON as text."""
    if gates is None:
        return dict.fromkeys(GATE_COLUMNS)
    resources = json.dumps(gates.resources) if gates.resources else None
    values = gates.tenant, gates.key, resources, gates.text
    return dict(zip(GATE_COLUMNS, values, strict=True))


GATE_COLUMNS = ("tenant", "concurrency_key", "resources", "gates")
"""The columns that only an insert of jobs with gates names."""


def timing(now: str, due: str, when_due: str = "'ready'") -> dict[str, str]:
    """The columns that follow from the due time of a job, each with its expression. ``now``,
    ``due`` and ``when_due``, the status of a due job, are expressions."""
    return {
        "status": f"CASE WHEN {due} > {now} THEN 'scheduled' ELSE {when_due} END",
        "rank": f"date_part('epoch', {due}) - %(priority)s * %(weight)s::float8",
        "available_at": due,
        "expires_at": f"{now} + make_interval(secs => %(max_age)s::float8)",
        "created_at": now,
    }


# statement_timestamp() has one value in the whole statement, the time when the statement began: a
# job enqueued late in a long transaction is not backdated to the transaction's begin.
NOW = "statement_timestamp()"
DUE = f"coalesce(%(run_at)s::timestamptz, {NOW} + make_interval(secs => %(delay)s::float8))"


def listed(expressions: Iterable[str]) -> str:
    """Names or expressions as a list of a statement, a line each."""
    return ",\n    ".join(expressions)


class ClaimedJob(NamedTuple):
    """A running job, with what its worker needs to make the attempt.

    ``payload``, ``backoff`` and ``headers`` are JSON text as PostgreSQL returned it, so that an
    unreadable row fails alone, when its attempt begins. Times are epoch seconds of the database's
    clock, except ``taken_at``: the moment of ``claimed_at`` by ``time.monotonic()``. ``timeout`` is
    in seconds.
    """

    rank: float
    id: int
    attempt: int
    queue: str
    job_type: str
    payload: str
    payload_version: int
    priority: int
    available_at: float
    failures: int
    crashes: int
    max_attempts: int
    max_crashes: int
    backoff: str | None
    timeout: float | None
    expires_at: float | None
    retry_until: float | None
    idempotency_key: str | None
    headers: str
    cancel_requested: bool
    claimed_at: float
    scheduled_for: float | None
    at_most_once: bool
    gates: str | None
    workflow_run_id: int | None
    worker: int
    taken_at: float = 0.0

    @property
    def position(self) -> QueuePosition:
        return self.rank, self.id

    @property
    def fence(self) -> Fence:
        return self.id, self.attempt, self.worker

    @property
    def bytes(self) -> int:
        """The memory of its payload and its headers."""
        return len(self.payload) + len(self.headers)

    def time_at(self, now: float) -> float:
        """The database's time, in epoch seconds, at ``now``, a value of ``time.monotonic()``."""
        return self.claimed_at + now - self.taken_at

    def expired(self, now: float) -> str:
        """The option that lets no attempt begin any more at ``now``, a value of
        ``time.monotonic()``; usually empty."""
        if self.expires_at is not None and self.time_at(now) >= self.expires_at:
            return "max_age"
        late = self.retry_until is not None and self.time_at(now) > self.retry_until
        return "retry_for" if late else ""

    @property
    def retry_for(self) -> float | None:
        """Seconds, as its job type declares them now."""
        job_type = registry.find(self.job_type)
        return None if job_type is None else job_type.retry_for

    @property
    def is_optional(self) -> bool:
        """Whether it is a step that is skipped where it would be dead."""
        return self.workflow_run_id is not None and OPTIONAL in (_object_of(self.headers) or ())

    @property
    def is_suspect(self) -> bool:
        """Whether its process died in the last attempt. A suspect runs alone."""
        return self.crashes > 0

    @property
    def resources(self) -> tuple[str, ...]:
        return () if self.gates is None else parse(self.gates).resources

    @property
    def hands_over(self) -> bool:
        """Whether its slots pass to the next job of its line. Tenants take turns instead, and a job
        that may replace others, or be discarded, is looked at first."""
        gates = self.gates
        return gates is not None and gates.endswith(JUST_WAITS) and bool(NO_TENANT.match(gates))

    @property
    def shares_gates(self) -> bool:
        """Whether jobs of other lines may wait for what it takes: a resource, or room."""
        try:
            return self.gates is not None and (not self.hands_over or bool(self.resources))
        except ValueError:  # a row that was not written by enqueue
            return True

    def facts(
        self, *, cancel_requested: bool = False, down: str = "", started: float | None = None
    ) -> Facts:
        """The facts from which :func:`~django_jobs.domain.decisions.decide` chooses what follows.
        ``cancel_requested`` adds a cancel that was requested after the claim. ``started`` is when
        the attempt began, a value of ``time.monotonic()``, if that is known."""
        from ..domain.decisions import Facts  # a process that enqueues decides nothing

        until = self.retry_until
        if until is None and started is not None and (window := self.retry_for) is not None:
            until = self.time_at(started) + window
        return Facts(
            failures=self.failures,
            crashes=self.crashes,
            max_attempts=self.max_attempts,
            max_crashes=self.max_crashes,
            backoff=_object_of(self.backoff),
            expires_at=self.expires_at,
            retry_until=until,
            cancel_requested=cancel_requested or self.cancel_requested,
            at_most_once=self.at_most_once,
            timeout=self.timeout,
            down=down,
        )


COMPUTED = {
    "available_at": "date_part('epoch', job.available_at)",
    "expires_at": "date_part('epoch', job.expires_at)",
    "retry_until": "date_part('epoch', job.retry_until)",
    "cancel_requested": "job.cancel_requested_at IS NOT NULL",
    "claimed_at": "date_part('epoch', clock_timestamp())",
    "scheduled_for": "date_part('epoch', job.scheduled_for)",
}
ADDED = ("worker", "taken_at")
"""The fields of :class:`ClaimedJob` that no statement returns."""

CLAIMED = listed(
    COMPUTED.get(name, f"job.{name}") for name in ClaimedJob._fields if name not in ADDED
)
"""What a claim returns: the columns of :class:`ClaimedJob`, in its order."""


def _object_of(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
