"""Tasks of Django that the tests enqueue."""

from __future__ import annotations

from typing import Any, Literal

from django_jobs import Backoff, Cancel
from django_jobs.backend import task
from django_jobs.backend.interface import TaskContext


@task
def total(left: int, right: int = 1) -> int:
    return left + right


@task
async def async_total(left: int, right: int = 1) -> int:
    return left + right


@task
def everything(*numbers: int, **named: Any) -> list[Any]:
    return [list(numbers), named]


@task(takes_context=True)
def about_itself(context: TaskContext[..., Any], word: str = "hello") -> list[Any]:
    result = context.task_result
    return [word, context.attempt, result.id, result.status, result.worker_ids]


@task(max_attempts=2, backoff=Backoff.fixed(0, jitter=0), takes_context=True)
def second_time(context: TaskContext[..., Any]) -> int:
    if context.attempt == 1:
        raise ConnectionError("not yet")
    return context.attempt


@task
def choose(answer: Literal["yes", "no"]) -> str:
    return answer


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task
def cancel_itself() -> None:
    raise Cancel("nothing to do")


@task(timeout=60, resources=("tasks",), queue_name="bulk", on_cancel="ask")
def limited() -> None: ...


@task
def answer(kind: str) -> Any:
    return {"set": {1}, "nan": float("nan"), "nul": "\x00", "tuple": (1, 2)}[kind]


@task(takes_context=True)
async def async_about_itself(context: TaskContext[..., Any]) -> list[Any]:
    return [context.attempt, context.task_result.id]
