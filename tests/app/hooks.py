"""Hooks that the tests name in ``DJANGO_JOBS["HOOKS"]``."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.utils import timezone, translation

from django_jobs import HookEvent

PATH = f"{__name__}."

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")

seen: list[tuple[Any, ...]] = []
"""What the hooks noted; the fixture ``hooked`` empties it."""

changes: dict[str, Callable[[HookEvent], Any]] = {}
"""What :func:`changing` calls before its block (``"before"``), or after it (``"after"``)."""


@contextmanager
def outer(event: HookEvent) -> Iterator[None]:
    seen.append(("outer", event.kind))
    yield
    seen.append(("outer left", event.kind))


@contextmanager
def inner(event: HookEvent) -> Iterator[None]:
    """Notes the event, and with what its block ended."""
    seen.append(("inner", event.kind, event.job_type, event.queue, dict(event.headers)))
    payload = None if event.payload is None else dict(event.payload)
    try:
        yield
    except BaseException as error:
        seen.append(("inner left", event.kind, payload, event.job_id, type(error).__name__))
        raise
    seen.append(("inner left", event.kind, payload, event.job_id, event.attempt))


@contextmanager
def tenants(event: HookEvent) -> Iterator[None]:
    """Passes the tenant on."""
    if event.kind == "enqueue":
        event.headers.setdefault("tenant", tenant.get())
        yield
        return
    token = tenant.set(event.headers.get("tenant", "unknown"))
    try:
        yield
    finally:
        tenant.reset(token)


@contextmanager
def locale(event: HookEvent) -> Iterator[None]:
    """Passes the language and the time zone on."""
    if event.kind == "enqueue":
        event.headers["language"] = translation.get_language()
        event.headers["zone"] = timezone.get_current_timezone_name()
        yield
        return
    with translation.override(event.headers["language"]), timezone.override(event.headers["zone"]):
        yield


@contextmanager
def changing(event: HookEvent) -> Iterator[None]:
    if "before" in changes:
        changes["before"](event)
    yield
    if "after" in changes:
        changes["after"](event)


@contextmanager
def failing_after(event: HookEvent) -> Iterator[None]:
    """Replaces, in ``finally``, the exception of its block."""
    try:
        yield
    finally:
        changes["after"](event)


@contextmanager
def swallowing(event: HookEvent) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        seen.append(("swallowed", type(error).__name__))


def plain(event: HookEvent) -> None:
    """No context manager."""


def undecorated(event: HookEvent) -> Iterator[None]:
    yield


async def asynchronous(event: HookEvent) -> None:
    """No context manager either."""
