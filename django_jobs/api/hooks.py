"""The hooks of a project, ``DJANGO_JOBS["HOOKS"]``: context managers around enqueues and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from django.utils.module_loading import import_string

from ..conf import conf
from ..domain.payload import a_kind
from ..exceptions import HookError

if TYPE_CHECKING:
    from ..lifecycle.job_columns import NewJobs
    from .job_type import JobType

Hook = Callable[["HookEvent"], AbstractContextManager[Any]]


@dataclass(slots=True, kw_only=True)
class HookEvent:
    """What a hook gets.

    ``kind`` is ``"enqueue"`` or ``"run"``. ``job_type`` and ``queue`` are names; at the start of a
    workflow they are its name and the queue that its ``using()`` got, or None. A hook writes
    ``headers`` at the enqueue and reads them at the run. ``payload`` has the arguments by name, and
    cannot be changed; it is None for ``enqueue_many()`` and ``spawn()``, which have many.

    ``job_id`` is known at the run, and after the enqueue of one job. ``attempt`` is the number of
    the run, from 1. ``count`` is the number of jobs of an enqueue of many, known after it.
    """

    kind: Literal["enqueue", "run"]
    job_type: str
    queue: str | None
    headers: dict[str, Any]
    payload: Mapping[str, Any] | None = None
    job_id: int | None = None
    attempt: int | None = None
    count: int | None = None


def loaded() -> tuple[tuple[str, Hook], ...]:
    """The hooks by their dotted paths, in their order. Raises ``ImportError``."""
    return _loaded(conf().hooks)


@lru_cache(maxsize=8)
def _loaded(paths: tuple[str, ...]) -> tuple[tuple[str, Hook], ...]:
    return tuple((path, import_string(path)) for path in paths)


def enqueue_event(
    job_type: JobType[..., Any], payload: Mapping[str, Any] | None = None
) -> HookEvent:
    return HookEvent(
        kind="enqueue",
        job_type=job_type.name,
        queue=job_type.queue,
        headers=dict(job_type.headers or {}),
        payload=None if payload is None else MappingProxyType(payload),
    )


@contextmanager
def around(event: HookEvent) -> Iterator[HookEvent]:
    """Enter all hooks, the first one outermost, and leave them in reverse order.

    What a hook raises before the block is raised in its place; what it raises after the block is
    raised too. A hook cannot suppress an exception of the block.
    """
    with ExitStack() as stack:
        for path, hook in loaded():
            stack.enter_context(Unsuppressing(manager_of(path, hook, event)))
        yield event


def request_with_hooks(job_type: JobType[..., Any], payload: Mapping[str, Any]) -> NewJobs:
    """The request of one job of many that are inserted later: hooks are around each request."""
    if not conf().hooks:
        return job_type.request()
    with around(enqueue_event(job_type, payload)) as event:
        return job_type.request(event.headers)


def manager_of(path: str, hook: Hook, event: HookEvent) -> AbstractContextManager[Any]:
    """What the hook returned. Raises :class:`HookError` if it is no context manager."""
    manager = hook(event)
    if not hasattr(type(manager), "__exit__"):
        raise HookError(
            f"the hook {path} returned {a_kind(manager)}, not a context manager; decorate it with "
            "@contextmanager"
        )
    return manager


class Unsuppressing(AbstractContextManager[None]):
    """A context manager whose ``__exit__`` suppresses nothing."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    def __enter__(self) -> None:
        self._manager.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._manager.__exit__(*raised)
