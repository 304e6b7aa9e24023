"""The other steps of the run of a handler: their results, and those that it spawns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from ...api.hooks import around, enqueue_event, request_with_hooks
from ...api.job_type import JobType
from ...api.payloads import items_of
from ...api.steps import Step, check_options_of_step, check_step_name
from ...domain.payload import key_problem
from ...domain.workflows import When
from ...exceptions import EnqueueError, WorkflowError
from ...lifecycle.enqueueing import BATCH
from ...lifecycle.step_insert import NewStep
from ...lifecycle.workflows import results
from ...lifecycle.workflows.results import (
    StepResult,
    parents_after,
    result_of,
    step_names,
    steps_of,
)
from ...lifecycle.workflows.spawning import NewSpawn, Spawned, new_run_id, stored, write_batch
from ...models.database import in_transaction, jobs_connection
from .attempt import Attempt

LONGEST_KEY = 150
"""Characters of the key of a spawn, which is the name of its children without their numbers."""

Page = tuple[list[StepResult], Any]


class Results(Mapping[str, Any]):
    """The results of the steps upstream, by their names. Each is read once, when it is asked for.

    The result of a step that did not succeed is None. ``KeyError`` says which steps there are, or
    that the step has not ended. In an async handler, use ``await results.aget(name)``. Raises
    ``RuntimeError`` once the handler has ended, and :class:`LeaseLost`.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        run = self._run()
        if name not in self._known:
            if run is None:
                raise KeyError(f"there is no step {name!r}; this job is no step of a workflow")
            with not_async("await run.results.aget(name)"):
                self._known[name] = result_of(run, name, self._attempt.job.id)
        return self._known[name]

    async def aget(self, name: str) -> Any:
        """``results[name]`` for async code."""
        return await sync_to_async(self.__getitem__)(name)

    def __iter__(self) -> Iterator[str]:
        """The names of the steps that have ended."""
        run = self._run()
        with not_async("await run.results.aget(name)"):
            return iter([] if run is None else step_names(run, ended=True))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _run(self) -> int | None:
        self._attempt.reporter.of(self._attempt)
        return self._attempt.job.workflow_run_id


class Children:
    """The steps of a fan-out in their order, for ``for`` and ``async for``. They are read in pages,
    so that a million of them take little memory. Each iteration reads them again. A page raises
    ``RuntimeError`` once the handler has ended, and :class:`LeaseLost`."""

    def __init__(
        self, attempt: Attempt, read: Callable[[Any], Page], start: Callable[[], Any]
    ) -> None:
        self._attempt = attempt
        self._read = read
        self._start = start

    def __iter__(self) -> Iterator[StepResult]:
        at = self._start()
        while at is not None:
            with not_async("async for child in run.children()"):
                page, at = self._page(at)
            yield from page

    async def __aiter__(self) -> AsyncIterator[StepResult]:
        at = self._start()
        while at is not None:
            page, at = await sync_to_async(self._page)(at)
            for child in page:
                yield child

    def _page(self, at: Any) -> Page:
        self._attempt.reporter.of(self._attempt)
        return self._read(at)


def joined_by(attempt: Attempt) -> Children:
    return Children(attempt, lambda after: parents_after(attempt.job, after), int)


def spawned_by(attempt: Attempt, keys: Sequence[str]) -> Children:
    def read(at: tuple[list[int], Iterator[int]]) -> Page:
        left, others = at
        ids = [*left, *islice(others, results.PAGE - len(left))]
        page, left = steps_of(ids)
        return page, (left, others) if left or len(ids) == results.PAGE else None

    def ids() -> Iterator[int]:
        for key in keys:
            for first, last in stored(attempt.job, key).ids:
                yield from range(first, last + 1)

    return Children(attempt, read, lambda: ([], ids()))


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of ``spawn()``."""

    job_type: JobType[..., Any]
    payloads: Iterable[Mapping[str, Any]]
    then: JobType[..., Any] | Step | None
    key: str | None
    when: str


def spawn(
    attempt: Attempt, call: Call, earlier: Sequence[str], on_batch: Callable[[], None]
) -> str:
    """Write what a call of ``spawn()`` asks for, from where the last attempt stopped; return its
    key. ``earlier`` are the keys of the calls before it in this attempt; ``on_batch`` is called
    before each batch."""
    _check(attempt, call)
    number = len(earlier) + 1
    key = call.key or f"{call.job_type.handler.__name__[:LONGEST_KEY]}{_suffix(number)}"
    if key in earlier:
        raise EnqueueError(
            f"spawn(): this handler has spawned under the key {key!r} already; give one of the "
            "two another key="
        )
    spawned = stored(attempt.job, key)
    if not spawned.is_done:
        with around(enqueue_event(call.job_type)) as event:
            new = _new_spawn(attempt, call, key, number, event.headers)
            event.count = _write(attempt, call, new, spawned, on_batch) - spawned.count
    return key


def _write(
    attempt: Attempt, call: Call, new: NewSpawn, spawned: Spawned, on_batch: Callable[[], None]
) -> int:
    """Write the children that are left, and return how many there are in all."""
    if attempt.job.workflow_run_id is None:
        # Known before the first batch, so the settle opens what comes next if its answer is lost.
        attempt.job = attempt.job._replace(workflow_run_id=new_run_id())
    items = items_of(call.job_type, call.payloads)
    skipped = items.skip(spawned.count)
    if skipped < spawned.count:
        raise EnqueueError(
            f"spawn(): an earlier attempt wrote {spawned.count} children, and there are only "
            f"{skipped} payloads now; each attempt has to give the same ones, in the same order"
        )
    count, is_last = skipped, False
    while not is_last:
        batch = items.take(BATCH)
        is_last = items.is_over
        on_batch()
        count = write_batch(attempt.job, new, count, batch, is_last=is_last).count
    return count


def _check(attempt: Attempt, call: Call) -> None:
    job_type, then = call.job_type, call.then
    if not isinstance(job_type, JobType):
        raise TypeError(f"spawn() takes a job type, made by @job, not {job_type!r}")
    if then is not None and not isinstance(then, JobType | Step):
        raise TypeError(f"spawn(): then is a job type or one of its steps, not {then!r}")
    if call.when not in (When.SUCCEEDED, When.FINISHED):
        raise ValueError(f"spawn(): when is 'succeeded' or 'finished', not {call.when!r}")
    if call.key is not None and (problem := key_problem(call.key, "a key", "key")):
        raise ValueError(f"spawn(): {problem}")
    if call.key is not None and len(call.key) > LONGEST_KEY:
        raise ValueError(f"spawn(): a key has at most {LONGEST_KEY} characters")
    if attempt.job_type is not None and attempt.job_type.delivery == "exactly_once":
        raise EnqueueError(
            "spawn() commits each batch by itself, and an exactly_once handler is one transaction; "
            "use at_least_once, where a repeated spawn() continues and makes no child twice"
        )
    if in_transaction(jobs_connection()):
        raise EnqueueError(
            "spawn() commits each batch by itself; call it outside of transaction.atomic()"
        )
    check_options_of_step(job_type, f"spawn({job_type.name})")


def _suffix(number: int) -> str:
    return "" if number == 1 else f"-{number}"


def _new_spawn(
    attempt: Attempt, call: Call, key: str, number: int, headers: Mapping[str, Any]
) -> NewSpawn:
    own = attempt.job_type.handler.__name__ if attempt.job_type else attempt.job.job_type
    then, takes = None, []
    if call.then is not None:
        step = call.then if isinstance(call.then, Step) else call.then.step()
        takes = _takes(step, own)
        job_type, payload = step.job_type, dict(step.payload)
        job_type.check_payload(payload | dict.fromkeys(takes))
        name = f"{step.name}{_suffix(number)}"
        check_step_name(name, "spawn(): then")
        then = NewStep(
            name=name,
            new=request_with_hooks(job_type, payload),
            payload=job_type.encoded_payload(payload),
            gates=job_type.gates_of(payload),
            others=1,
        )
    return NewSpawn(
        key=key,
        name=key,
        step=own,
        new=call.job_type.request(headers),
        then=then,
        takes=takes,
        when=When(call.when),
    )


def _takes(step: Step, own: str) -> list[str]:
    """The arguments of ``then`` that get the result of the handler that spawns."""
    for argument, source in step.takes.items():
        if source != own:
            raise WorkflowError(
                f"spawn(): {step.name!r} takes {argument!r} from {source!r}; what comes after the "
                f"children can take the result of {own!r} only"
            )
    return list(step.takes)


@contextmanager
def not_async(instead: str) -> Iterator[None]:
    """Add to Django's error about async code what to write there."""
    try:
        yield
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(f"in an async handler, write {instead}") from None
