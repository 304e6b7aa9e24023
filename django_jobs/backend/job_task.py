"""A Task with the options of a job type, and the decorator that declares one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from ..domain.backoff import Backoff
from ..domain.concurrency import Concurrency
from ..domain.options import (
    TASK_OPTIONS,
    TASK_USING_OPTIONS,
    Delivery,
    KeyScope,
    OnCancel,
    OnDuplicate,
    TaskOptions,
    TaskRequestOptions,
    Upgrade,
    check_known,
    several,
)
from .interface import Task, TaskContext, task_backends

P = ParamSpec("P")
R = TypeVar("R")

OF_THE_DECLARATION = tuple(name for name in TASK_OPTIONS if name not in TASK_USING_OPTIONS)
"""Options of a Task that are those of its job type. ``using()`` does not change them."""
OPTIONS_OF_DJANGO = ("priority", "queue_name", "run_after", "backend")
OF_A_REQUEST = tuple(name for name in TASK_USING_OPTIONS if name not in TASK_OPTIONS)


def of_options(alias: str) -> str:
    return f'TASKS[{alias!r}]["OPTIONS"]'


def check_options(options: Any, alias: str) -> None:
    """Raise ``TypeError`` unless the ``OPTIONS`` of a backend are a dict of what its Tasks take."""
    where = of_options(alias)
    if not isinstance(options, Mapping):
        raise TypeError(f"{where} is a dict of options, not {options!r}")
    check_known(options, where, TASK_OPTIONS, "@task")


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
    delivery: Delivery | None = None
    on_cancel: OnCancel | None = None
    schedulable: bool | None = None
    version: int | None = None
    upgrades: Mapping[int, Upgrade] | None = field(default=None, hash=False)
    aliases: Iterable[str] | None = field(default=None, hash=False)
    retention: Mapping[str, Any] | None = field(default=None, hash=False)
    resources: Iterable[str] | str | None = field(default=None, hash=False)
    concurrency: Concurrency | None = None
    tenant: str | Callable[[dict[str, Any]], str | None] | None = None
    tags: Iterable[str] | str | None = field(default=None, hash=False)
    idempotency_key: str | None = None
    key_scope: KeyScope | None = None
    unique_for: float | timedelta | None = None
    on_duplicate: OnDuplicate | None = None
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
        **options: Unpack[TaskRequestOptions],
    ) -> JobTask[P, R]:
        """A copy of this Task with other options, for one request. None keeps the present one.

        The others are those of :meth:`JobType.using`. A tenant that is given here is a name,
        not a template, and tags come in addition to the present ones.
        """
        known, where = (*OPTIONS_OF_DJANGO, *TASK_USING_OPTIONS), f"{self.module_path}.using()"
        check_known(options, where, known, "@task")
        of_django = zip(OPTIONS_OF_DJANGO, (priority, queue_name, run_after, backend), strict=True)
        every: dict[str, Any] = dict(of_django) | options
        given: dict[str, Any] = {name: value for name, value in every.items() if value is not None}
        if isinstance(resources := given.get("resources"), Iterator):
            given["resources"] = tuple(resources)
        if "tags" in given:
            both = self.tags or (), options["tags"]
            given["tags"] = tuple(tag for tags in both for tag in several(tags, "tags", where))
        return replace(self, **given)


@overload
def task(function: Callable[P, R], /) -> JobTask[P, R]: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[Concatenate[TaskContext[..., Any], P], R]], JobTask[P, R]]: ...
@overload
def task(
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: Literal[False] = False,
    **options: Unpack[TaskOptions],
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
        # Those of a request are refused by name.
        known = *OPTIONS_OF_DJANGO, "takes_context", *TASK_OPTIONS, *OF_A_REQUEST
        check_known(options, f"@task {getattr(declared, '__qualname__', declared)}", known, "@task")
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
