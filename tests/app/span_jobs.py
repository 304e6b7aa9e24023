"""Handlers that make spans of their own."""

from __future__ import annotations

import asyncio

from asgiref.sync import sync_to_async
from opentelemetry import baggage

from django_jobs import job

from .spans import tracer


def inner(name: str) -> str:
    """A span, as of a call to another service."""
    with tracer.start_as_current_span(name):
        return str(baggage.get_baggage("customer"))


@job
def call_service() -> str:
    """In a thread of the worker."""
    return inner("called")


@job
async def acall_service() -> str:
    """On the event loop, and in the thread for blocking calls."""
    await asyncio.sleep(0)
    inner("called on the loop")
    return await sync_to_async(inner)("called in a thread")


@job(isolated=True)
def call_service_alone() -> str:
    """In a child process."""
    return inner("called alone")


@job
def call_service_later() -> None:
    """A job that enqueues another one."""
    call_service.enqueue()
