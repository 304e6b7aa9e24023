"""A Task with the options of a job type, and the decorator that declares one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from ..domain.backoff import Backoff
from ..domain.concurrency import Concurrency
from .interface import Task, TaskContext, task_backends

P = ParamSpec("P")
R = TypeVar("R")

OF_THE_DECLARATION = (
    *("max_crashes", "backoff", "timeout", "silence_timeout", "max_rss", "max_age", "retry_on"),
    *("discard_on", "error_budgets", "isolated", "delivery", "schedulable", "version", "upgrades"),
    *("aliases", "retention", "concurrency", "retry_for"),
)
"""Options of a Task that are those of its job type. ``using()`` does not change them."""
OF_BOTH = ("max_attempts", "resources", "tenant", "tags")
OF_A_REQUEST = (
    *("idempotency_key", "key_scope", "unique_for", "on_duplicate", "headers", "concurrency_key"),
)
OF_JOB_TYPES = OF_THE_DECLARATION + OF_BOTH
OF_REQUESTS = OF_BOTH + OF_A_REQUEST

if TYPE_CHECKING:
    GenericTask = Task
else:  # Django's Task takes parameters in its stubs only

    class _Generic:
        def __getitem__(self, parameters: Any) -> type:
            return Task

    GenericTask = _Generic()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobTask(GenericTask[P, R]):
    """A Task of :class:`JobsBackend`. Options that are None are those of the backend, or else the
    defaults of :func:`django_jobs.job`; ``max_attempts`` is then 1.

    The first four fields are Django's, which have no defaults before 6.1."""

    priority: int = 0
    backend: str = "default"
    queue_name: str = "default"
    run_after: datetime | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    silence_timeout: float | None = None
    max_rss: int | None = None
    max_age: float | timedelta | None = None
    retry_for: float | timedelta | None = None
    retry_on: Iterable[type[BaseException]] | type[BaseException] | None = field(
        default=None, hash=False
    )
    discard_on: Iterable[type[BaseException]] | type[BaseException] | None = field(
        default=None, hash=False
    )
    error_budgets: Mapping[type[BaseException], int] | None = field(default=None, hash=False)
    isolated: bool | None = None
    delivery: Literal["at_least_once", "at_most_once", "exactly_once"] | None = None
    schedulable: bool | None = None
    version: int | None = None
    upgrades: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] | None = field(
        default=None, hash=False
    )
    aliases: Iterable[str] | None = field(default=None, hash=False)
    retention: Mapping[str, Any] | None = field(default=None, hash=False)
    resources: Iterable[str] | str | None = field(default=None, hash=False)
    concurrency: Concurrency | None = None
    tenant: str | Callable[[dict[str, Any]], str | None] | None = None
    tags: Iterable[str] | str | None = field(default=None, hash=False)
    idempotency_key: str | None = None
    key_scope: Literal["queue", "tenant"] | None = None
    unique_for: float | timedelta | None = None
    on_duplicate: Literal["return", "raise", "replace"] | None = None
    headers: Mapping[str, Any] | None = field(default=None, hash=False)
    concurrency_key: str | None = None

    def __repr__(self) -> str:
        """With the options that are not the defaults: most of the twenty-odd are."""
        given = (
            f" {one.name}={value!r}"
            for one in fields(self)
            if one.name != "func" and (value := getattr(self, one.name)) != one.default
        )
        return f"<JobTask {self.module_path}{''.join(given)}>"

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        resources: Iterable[str] | str | None = None,
        tenant: str | None = None,
        tags: Iterable[str] | str | None = None,
        idempotency_key: str | None = None,
        key_scope: Literal["queue", "tenant"] | None = None,
        unique_for: float | timedelta | None = None,
        on_duplicate: Literal["return", "raise", "replace"] | None = None,
        headers: Mapping[str, Any] | None = None,
        concurrency_key: str | None = None,
    ) -> JobTask[P, R]:
        """A copy of this Task with other options, for one request. None keeps the present one.

        The last ten are those of :meth:`JobType.using`. A tenant that is given here is a name,
        not a template, and tags come in addition to the present ones.
        """
        options = {name: value for name, value in locals().items() if value is not None}
        del options["self"]
        if isinstance(resources, Iterator):
            options["resources"] = tuple(resources)
        if tags is not None:
            options["tags"] = (*_several(self.tags), *_several(tags))
        return replace(self, **options)


def _several(tags: Iterable[str] | str | None) -> Iterable[str]:
    return (tags,) if isinstance(tags, str) else tags or ()


@overload
def task(function: Callable[P, R], /) -> JobTask[P, R]: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    **options: Any,
) -> Callable[[Callable[Concatenate[TaskContext[..., Any], P], R]], JobTask[P, R]]: ...
@overload
def task(
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: Literal[False] = False,
    max_attempts: int | None = None,
    max_crashes: int | None = None,
    backoff: Backoff | None = None,
    timeout: float | None = None,
    silence_timeout: float | None = None,
    max_rss: int | None = None,
    max_age: float | timedelta | None = None,
    retry_on: Iterable[type[BaseException]] | type[BaseException] | None = None,
    discard_on: Iterable[type[BaseException]] | type[BaseException] | None = None,
    error_budgets: Mapping[type[BaseException], int] | None = None,
    isolated: bool | None = None,
    delivery: Literal["at_least_once", "at_most_once", "exactly_once"] | None = None,
    schedulable: bool | None = None,
    version: int | None = None,
    upgrades: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] | None = None,
    aliases: Iterable[str] | None = None,
    retention: Mapping[str, Any] | None = None,
    resources: Iterable[str] | str | None = None,
    concurrency: Concurrency | None = None,
    tenant: str | Callable[[dict[str, Any]], str | None] | None = None,
    tags: Iterable[str] | str | None = None,
    retry_for: float | timedelta | None = None,
) -> Callable[[Callable[P, R]], JobTask[P, R]]: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """Declare a function as a Task, with the options of :func:`django_jobs.job` too.

    Django's own decorator takes them from 6.1 on; this one does with every version. If the backend
    is another one than :class:`JobsBackend`, such as Django's ImmediateBackend in tests, they have
    no effect.

    Raises Django's ``InvalidTask`` if the function or an option cannot work, ``TypeError`` for an
    unknown option.
    """

    def declare(declared: Callable[..., Any]) -> JobTask[..., Any]:
        kind = task_backends[backend].task_class
        return (kind if issubclass(kind, JobTask) else JobTask)(
            func=declared,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            **options,
        )

    return declare if function is None else declare(function)
