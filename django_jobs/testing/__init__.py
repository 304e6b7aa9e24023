"""The testing kit: runs jobs in the process and the transaction of a test.

The names are resolved on first use, because ``jobworker`` imports the failpoints from here, and
pytest the fixture, and neither needs the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assertions import JobsMixin as JobsMixin
    from .assertions import JobsTestCase as JobsTestCase
    from .assertions import assert_enqueued as assert_enqueued
    from .assertions import capture_jobs as capture_jobs
    from .assertions import refute_enqueued as refute_enqueued
    from .crashing import crash_at as crash_at
    from .crashing import expire_lease as expire_lease
    from .draining import JobFailed as JobFailed
    from .draining import arun_jobs as arun_jobs
    from .draining import immediate as immediate
    from .draining import run_jobs as run_jobs
    from .travelling import travel as travel

_HOMES = {
    **dict.fromkeys(("JobFailed", "arun_jobs", "immediate", "run_jobs"), "draining"),
    **dict.fromkeys(("assert_enqueued", "capture_jobs", "refute_enqueued"), "assertions"),
    **dict.fromkeys(("JobsMixin", "JobsTestCase"), "assertions"),
    **dict.fromkeys(("crash_at", "expire_lease"), "crashing"),
    "travel": "travelling",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
