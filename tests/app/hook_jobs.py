"""Handlers that return what the hooks have restored."""

from __future__ import annotations

from django.utils import timezone, translation

from django_jobs import job

from . import hooks


def context() -> tuple[str, str, str]:
    """Tenant, language and time zone."""
    return hooks.tenant.get(), str(translation.get_language()), timezone.get_current_timezone_name()


@job
def note_context() -> tuple[str, str, str]:
    """In a thread of the worker."""
    return context()


@job
async def anote_context() -> tuple[str, str, str]:
    """On the event loop."""
    return context()


@job(isolated=True)
def note_context_alone() -> tuple[str, str, str]:
    """In a child process."""
    return context()
