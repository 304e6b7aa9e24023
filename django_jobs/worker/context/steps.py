"""The other steps of the run of a handler: their results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.workflows.results import (
    StepResult,
    parents_after,
    result_of,
    step_names,
)

Page = tuple[list[StepResult], Any]


class Results(Mapping[str, Any]):
    """The results of the steps upstream, by their names. Each is read once, when it is asked for.

    The result of a step that did not succeed is None. ``KeyError`` says which steps there are, or
    that the step has not ended. In an async handler, use ``await results.aget(name)``.
    """

    def __init__(self, run: int | None) -> None:
        self._run = run
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            if self._run is None:
                raise KeyError(f"there is no step {name!r}; this job is no step of a workflow")
            with NotAsync("await run.results.aget(name)"):
                self._known[name] = result_of(self._run, name)
        return self._known[name]

    async def aget(self, name: str) -> Any:
        """``results[name]`` for async code."""
        return await sync_to_async(self.__getitem__)(name)

    def __iter__(self) -> Iterator[str]:
        """The names of the steps that have ended."""
        with NotAsync("await run.results.aget(name)"):
            return iter([] if self._run is None else step_names(self._run, ended=True))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Children:
    """The steps of a fan-out in their order, for ``for`` and ``async for``. They are read in pages,
    so that a million of them take little memory. Each iteration reads them again."""

    def __init__(self, read: Callable[[Any], Page], start: Any) -> None:
        self._read = read
        self._start = start

    def __iter__(self) -> Iterator[StepResult]:
        at = self._start
        while at is not None:
            with NotAsync("async for child in run.children()"):
                page, at = self._read(at)
            yield from page

    async def __aiter__(self) -> AsyncIterator[StepResult]:
        at = self._start
        while at is not None:
            page, at = await sync_to_async(self._read)(at)
            for child in page:
                yield child


def joined_by(job: ClaimedJob) -> Children:
    """The steps that a step waited for."""
    return Children(lambda after: parents_after(job, after), 0)


class NotAsync:
    """Adds to Django's error about async code what to write there."""

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, SynchronousOnlyOperation):
            raise SynchronousOnlyOperation(f"in an async handler, write {self._instead}") from None
