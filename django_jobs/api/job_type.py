"""A job type: a handler, the options of its jobs, and the methods that enqueue them."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.conf import settings

from ..conf import conf
from ..domain.backoff import Backoff
from ..domain.concurrency import Concurrency
from ..domain.gates import Gates
from ..domain.numbers import without_decimal
from ..domain.options import (
    Delivery,
    KeyScope,
    OnCancel,
    OnDuplicate,
    RequestOptions,
    Upgrade,
    as_text,
    check_known,
    combined,
    no_attribute,
    of_a_request,
)
from ..domain.payload import NotStorable, Path, a_kind, encode
from ..exceptions import EnqueueError, PayloadError
from ..lifecycle import enqueueing
from ..lifecycle.job_columns import NewJobs
from ..models import Job, Queue
from ..models.database import call_after_all_commits, needing_tables
from ..signals import job_enqueued
from . import duplicates, gating, generations
from .payloads import UpgradeRaised, check_annotations, items_of
from .validation import attempts_problem, check_options, given_arguments, known_queue, tag_names

if TYPE_CHECKING:
    from .hooks import HookEvent
    from .steps import Step

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_MAX_ATTEMPTS = 5
DEFAULT_MAX_CRASHES = 3
LARGE = 100_000
"""Bytes of a payload of which its author is warned while ``DEBUG`` is on."""
IN_SECONDS = ("timeout", "silence_timeout", "max_age", "retry_for", "delay_seconds", "unique_for")
SPANS = IN_SECONDS[2:]
"""Those that may be a timedelta."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobType(Generic[P, R]):
    """A handler and the options of its jobs. Made by :func:`job`; calling it calls the handler.

    Times are in seconds, ``max_rss`` in megabytes. Of ``max_attempts``, ``backoff`` and
    ``timeout`` None means the queue's value, or else the default.
    """

    name: str
    handler: Callable[P, R]
    signature: inspect.Signature
    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    max_crashes: int = DEFAULT_MAX_CRASHES
    backoff: Backoff | None = None
    timeout: float | None = None
    silence_timeout: float | None = None
    max_rss: int | None = None
    max_age: float | None = None
    retry_for: float | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    discard_on: tuple[type[BaseException], ...] = ()
    error_budgets: Mapping[type[BaseException], int] = field(default_factory=dict, hash=False)
    isolated: bool = False
    delivery: Delivery = "at_least_once"
    on_cancel: OnCancel = "raise"
    schedulable: bool = False
    version: int = 1
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict, hash=False)
    aliases: tuple[str, ...] = ()
    retention: Mapping[str, Any] = field(default_factory=dict, hash=False)
    resources: tuple[str, ...] = ()
    concurrency: Concurrency | None = None
    tenant: gating.NameRule | None = None
    tags: tuple[str, ...] = ()
    concurrency_key: str | None = None
    run_at: datetime | None = None
    delay_seconds: float = 0.0  # the name delay would hide the hint for Celery's .delay()
    idempotency_key: str | None = None
    key_scope: KeyScope = "queue"
    unique_for: float | None = None
    on_duplicate: OnDuplicate = "return"
    headers: Mapping[str, Any] | None = None
    is_async: bool = field(init=False)
    """Whether the handler is an ``async def`` function."""
    _by_position: tuple[str, ...] = field(init=False)
    _takes: frozenset[str] = field(init=False)
    _needs: frozenset[str] = field(init=False)
    _gated: bool = field(init=False)
    _defaults: Mapping[str, Any] = field(init=False, compare=False)
    _known_request: tuple[Queue, NewJobs] | None = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        for option in IN_SECONDS:
            value = getattr(self, option)
            is_span = isinstance(value, timedelta) and option in SPANS
            seconds = value.total_seconds() if is_span else without_decimal(value)
            object.__setattr__(self, option, seconds)
        named = [
            parameter
            for parameter in self.signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        needed = [parameter for parameter in named if parameter.default is parameter.empty]
        by_position = [one for one in named if one.kind is one.POSITIONAL_OR_KEYWORD]
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.handler))
        object.__setattr__(self, "_by_position", tuple(one.name for one in by_position))
        object.__setattr__(self, "_takes", frozenset(parameter.name for parameter in named))
        object.__setattr__(self, "_needs", frozenset(parameter.name for parameter in needed))
        gates = self.resources, self.concurrency, self.tenant, self.concurrency_key
        object.__setattr__(self, "_gated", any(gates))
        defaults = gating.defaults_of(self.signature) if self._gated else {}
        object.__setattr__(self, "_defaults", defaults)

    def __repr__(self) -> str:
        return f"<JobType {self.name}>"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.handler(*args, **kwargs)

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    @property
    def handler_path(self) -> str:
        """Module and qualified name of the handler."""
        return f"{self.handler.__module__}.{self.handler.__qualname__}"

    def using(self, **options: Unpack[RequestOptions]) -> JobType[P, R]:
        """A copy of this job type with other options, for one request. None keeps the declared one.

        ``run_at`` (an aware datetime) or ``delay`` (seconds or a timedelta) postpones the job; give
        one of them. ``unique_for`` (seconds or a timedelta) keeps the idempotency key unique for
        this time from the enqueue, also after the job has ended. If another job holds the key,
        ``on_duplicate="raise"`` raises :class:`DuplicateJob`, and ``"replace"`` replaces that job
        unless it has started; the default ``"return"`` returns it. With ``key_scope="tenant"`` a
        key is unique within the tenant.

        ``tenant`` and ``concurrency_key`` are names, not templates; a key keeps the rest of the
        declared :class:`Concurrency`, or else its defaults. ``tags`` are added to declared ones.

        Raises :class:`EnqueueError` for an invalid option, ``TypeError`` for an unknown one.
        """
        check_known(options, self.name)
        given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        if "delay" in given:
            if "run_at" in given:
                raise EnqueueError(f"{self.name}: give run_at or delay, not both")
            given |= {"delay_seconds": given.pop("delay"), "run_at": None}  # the later one holds
        given |= gating.of_one_request(given, self.name)
        if "tags" in given:
            given["tags"] = combined(self.tags, tag_names(given["tags"], self.name))
        changed = replace(self, **given)
        check_options(changed)
        if "max_attempts" in given and (problem := attempts_problem(changed)):
            raise EnqueueError(f"{self.name}: {problem}")
        return changed

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Make a job that calls the handler with these arguments.

        The row is written in the caller's transaction and commits or rolls back with it. If a live
        job holds the idempotency key, that job is returned with ``deduplicated`` True, or replaced
        with ``on_duplicate="replace"``; with ``unique_for``, a job that has ended may hold it too.
        If its queue is full and drops its lowest job, and that is this one, the job is returned as
        cancelled.

        Raises :class:`PayloadError` if the arguments do not fit the handler or are not JSON,
        :class:`UnknownQueue`, :class:`UnknownResource`, :class:`QueueFull` and
        :class:`DuplicateJob`; then nothing is written.
        """
        return self.insert(self.bind(*args, **kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """:meth:`enqueue` for async code."""
        return await _enqueue_in_thread(self, args, kwargs)

    def enqueue_on_commit(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """:meth:`enqueue` once all transactions of this thread have committed, for data in another
        database than the jobs'. Raises what :meth:`enqueue` raises at once, but for a full queue
        and a held key. If the process dies between the commit and the insert, there is no job."""
        payload = self.bind(*args, **kwargs)
        text = self.encoded_payload(payload)
        duplicates.key_of(self, self.gates_of(payload))
        self.request()
        call_after_all_commits(lambda: self.insert(json.loads(text)))  # as it is now

    def enqueue_many(
        self,
        payloads: Iterable[Mapping[str, Any]],
        *,
        idempotency_keys: Iterable[str | None] | None = None,
    ) -> list[int]:
        """Make a job for each payload (arguments by name), thousands in one round trip.

        Returns the ids in the order of the payloads. ``idempotency_keys`` has a key or None for
        each payload; if a live job holds the key, that job's id is returned. Payloads are read in
        batches of 5,000 or 32 MB, so an iterator of millions takes little memory. An invalid one
        raises :class:`PayloadError` with its index, after earlier batches were written: call it
        inside ``transaction.atomic()`` to write all or none.
        """
        if conf().hooks:
            with self._hooked() as event:
                ids = self._insert_many(payloads, idempotency_keys, event.headers)
                event.count = len(ids)
                return ids
        return self._insert_many(payloads, idempotency_keys)

    def step(self, /, **payload: Any) -> Step:
        """A step of a chain or a group, with some or all arguments of the handler."""
        from .steps import step_of

        return step_of(self, payload)

    def steps(self, payloads: Iterable[Mapping[str, Any]]) -> list[Step]:
        """A step for each payload."""
        from .steps import step_of

        return [step_of(self, payload) for payload in payloads]

    def bind(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The payload of a call with these arguments, each by name.

        Raises :class:`PayloadError` if the handler does not take them.
        """
        # inspect takes 2.5 times as long. It says what is wrong, and sorts out ``**kwargs``.
        payload: dict[str, Any] = dict(zip(self._by_position, args, strict=False)) | kwargs
        if len(payload) == len(args) + len(kwargs) and self._is_taken(payload):
            return payload
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            got = given_arguments(args, kwargs) + of_a_request(
                name for name in kwargs if name not in self._takes
            )
            raise PayloadError(f"{self.name}{self.signature}: {error}; got {got}") from None
        payload = dict(bound.arguments)
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                payload.update(payload.pop(parameter.name, {}))
        return payload

    def check_payload(self, payload: Mapping[str, Any]) -> None:
        """Raise :class:`PayloadError` if the handler does not take these arguments."""
        if not self._is_taken(payload):
            self.bind(**payload)

    def _is_taken(self, payload: Mapping[str, Any]) -> bool:
        return self._needs <= payload.keys() and payload.keys() <= self._takes

    def takes_more_than(self, payload: Mapping[str, Any]) -> bool:
        """Whether the handler has arguments that this payload does not give."""
        return not self._takes <= payload.keys() or len(self._takes) < len(
            self.signature.parameters
        )

    def gates_of(self, payload: dict[str, Any]) -> Gates | None:
        """The gates of a job with a payload from :meth:`bind`; None if it has none.

        Raises :class:`PayloadError` if the payload cannot fill a template, and
        :class:`EnqueueError` if a function raises or returns anything but a name.
        """
        return gating.gates_of(self, payload) if self._gated else None

    @property
    def takes_files(self) -> bool:
        """Whether its jobs may have files: steps, which others share, have none."""
        return not hasattr(self.handler, "starts_workflow")

    def upgraded(self, payload: Any, version: int) -> dict[str, Any]:
        """A stored payload of ``version`` in the version that the handler takes, upgraded one
        version at a time.

        Never changes ``payload`` itself. Raises :class:`PayloadError` if it is not a dict or is
        newer than the handler, or if an upgrade is missing, raises, or returns anything but a dict.
        """
        if not isinstance(payload, dict):
            raise PayloadError("it is not a dict of arguments")
        if version == self.version:
            return payload
        if version > self.version:
            raise PayloadError(f"version {version} is newer than the handler's, {self.version}")
        result = deepcopy(payload)
        for step in range(version, self.version):
            if step not in self.upgrades:
                raise PayloadError(f"there is no upgrade from version {step}")
            try:
                result = self.upgrades[step](result)
            except Exception as error:
                raise UpgradeRaised(step, error) from error
            if not isinstance(result, dict):
                problem = f"the upgrade from version {step} gave {a_kind(result)}, not a dict"
                raise PayloadError(problem)
        return result

    def insert(self, payload: dict[str, Any]) -> Job:
        """Write one job with a payload from :meth:`bind`. Raises what :meth:`enqueue` raises."""
        if conf().hooks:
            with self._hooked(payload) as event:
                enqueued = self._insert(payload, event.headers)
                event.job_id = enqueued.pk
                return enqueued
        return self._insert(payload)

    def _hooked(self, payload: dict[str, Any] | None = None) -> AbstractContextManager[HookEvent]:
        from .hooks import around, enqueue_event

        return around(enqueue_event(self, payload))

    def _insert(self, payload: dict[str, Any], headers: Mapping[str, Any] | None = None) -> Job:
        if conf().storage is None or not self.takes_files:
            return self._write(payload, headers)
        from ..lifecycle.stored_files import insert_with_files

        return insert_with_files(self.name, payload, lambda stored: self._write(stored, headers))

    def _write(self, payload: dict[str, Any], headers: Mapping[str, Any] | None) -> Job:
        text = self.encoded_payload(payload, files_of=payload if self.takes_files else None)
        gates = gating.gates_of(self, payload) if self._gated else None
        with needing_tables:
            new = self.request(headers)
            write = partial(duplicates.enqueue_one, self, new, payload, text, gates)
            if new.has_limits([gates]):
                from ..lifecycle.backlog import insert_one

                is_duplicate = partial(duplicates.is_duplicate, self, gates)
                enqueued = insert_one(new, gates, write, is_duplicate)
            else:
                enqueued = write()
        is_new = not enqueued.deduplicated and not enqueued.is_final
        if is_new and job_enqueued.has_listeners(self.name):
            job_enqueued.send_robust(self.name, job=enqueued)
        return enqueued

    def _insert_many(
        self,
        payloads: Iterable[Mapping[str, Any]],
        keys: Iterable[str | None] | None,
        headers: Mapping[str, Any] | None = None,
    ) -> list[int]:
        with needing_tables:
            rule = duplicates.rule_of_many(self, has_keys=keys is not None)
            new = self.request(headers)
            return enqueueing.enqueue_many(new, items_of(self, payloads, keys, stores=True), rule)

    def request(self, headers: Mapping[str, Any] | None = None) -> NewJobs:
        """What all jobs of this request have in common. ``headers`` replace those of ``using()``.

        Raises :class:`UnknownQueue`, :class:`UnknownResource`, :class:`PayloadError` for headers
        that are not JSON, and :class:`EnqueueError` for a handler declared in ``__main__``.
        """
        if self.handler.__module__ == "__main__":
            raise EnqueueError(
                f"{self.name}: its handler is declared in the program that was started, "
                "__main__, which no worker imports; move it to the jobs.py of an installed app"
            )
        given = self.headers if headers is None else headers
        text = generations.noted(self.name, self.encoded(dict(given), "headers") if given else "{}")
        queue = known_queue(self.queue, self.name)
        # A queue is the same object for two seconds, and so is what follows from it.
        if (known := self._known_request) and known[0] is queue and known[1].headers == text:
            return known[1]
        gating.check_resources(self.resources, self.name)
        backoff = self.backoff.as_json() if self.backoff else queue.backoff
        new = NewJobs(
            queue=self.queue,
            job_type=self.name,
            weight=queue.priority_weight,
            priority=self.priority,
            run_at=self.run_at,
            delay=self.delay_seconds,
            max_attempts=self.max_attempts or queue.max_attempts or DEFAULT_MAX_ATTEMPTS,
            max_crashes=self.max_crashes,
            backoff=None if backoff is None else json.dumps(backoff),
            timeout=self.timeout or queue.timeout,
            at_most_once=self.delivery == "at_most_once",
            payload_version=self.version,
            max_age=self.max_age,
            headers=text,
            tags=as_text(self.tags),
            unique_for=self.unique_for,
            max_backlog=queue.max_backlog,
            on_full=queue.on_full,
            is_watched=queue.is_watched,
            max_waiting=queue.max_waiting,
        )
        object.__setattr__(self, "_known_request", (queue, new))
        return new

    def encoded_payload(
        self, payload: dict[str, Any], name: Path = "payload", *, files_of: Any = None
    ) -> str:
        """A payload of a new job as JSON text. Raises :class:`PayloadError` if it cannot be stored,
        if it refers to other files than ``files_of`` does, or with ``CHECK_ANNOTATIONS`` does not
        fit the annotations of the handler."""
        if (refuses := conf().check_annotations) or settings.DEBUG:
            try:
                check_annotations(self, payload)
            except PayloadError as error:
                if refuses:
                    raise
                warnings.warn(f"{error}; CHECK_ANNOTATIONS refuses it", RuntimeWarning, 2)
        text = self.encoded(payload, name)
        if len(text) > LARGE and settings.DEBUG:
            warnings.warn(
                f"{self.name}: each attempt reads a payload of {len(text.encode()):,} bytes; pass "
                "the id of a row, or Stored(file)",
                RuntimeWarning,
                stacklevel=2,
            )
        if files_of is not payload and conf().storage is not None:
            from ..lifecycle.stored_files import refuse_references

            refuse_references(self.name, payload, files_of)
        return text

    def encoded(self, value: dict[str, Any], name: Path) -> str:
        """``value`` as JSON text. Raises :class:`PayloadError` if it cannot be stored."""
        try:
            return encode(value, max_bytes=conf().max_payload_bytes, name=name)
        except NotStorable as error:
            raise PayloadError(f"{self.name}: {error}") from None


# Once: to wrap a function takes as long as to bind and encode its arguments.
@sync_to_async(thread_sensitive=True)
def _enqueue_in_thread(
    job_type: JobType[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Job:
    return job_type.enqueue(*args, **kwargs)
