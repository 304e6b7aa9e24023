"""The testing kit: runs jobs in the process and the transaction of a test.

The names are resolved on first use, because ``jobworker`` imports the failpoints from here, and
pytest the fixture, and neither needs the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assertions import JobsMixin, JobsTestCase, assert_enqueued, capture_jobs, refute_enqueued
    from .at_once import immediate
    from .crashing import crash_at, expire_lease
    from .draining import JobFailed, arun_jobs, run_jobs
    from .travelling import travel

__all__ = [
    "JobFailed",
    "JobsMixin",
    "JobsTestCase",
    "arun_jobs",
    "assert_enqueued",
    "capture_jobs",
    "crash_at",
    "expire_lease",
    "immediate",
    "refute_enqueued",
    "run_jobs",
    "travel",
]

_HOMES = {
    **dict.fromkeys(("JobFailed", "arun_jobs", "run_jobs"), "draining"),
    **dict.fromkeys(("assert_enqueued", "capture_jobs", "refute_enqueued"), "assertions"),
    **dict.fromkeys(("JobsMixin", "JobsTestCase"), "assertions"),
    **dict.fromkeys(("crash_at", "expire_lease"), "crashing"),
    "immediate": "at_once",
    "travel": "travelling",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
