"""What is kept of a task for later: the arguments of its retry, and what its backend was given."""

from __future__ import annotations

from typing import Any

from ....worker.context.run_context import RunContext

ARGUMENTS = "arguments"
"""``{"payload": ..., "more": ...}`` of the next attempt, as of ``payload_of``."""
HEADERS = "headers"
"""The headers of the next attempt."""
STORED = "stored"
"""What the result backend was given last: ``status``, ``result``, ``traceback``, ``children``. It
holds while the job has as many ``failures``, or for one that had ``ended`` at this time."""


def kept(attempt: RunContext) -> dict[str, Any]:
    """What the failed attempts before have kept; nothing of those before a replay."""
    saved = attempt.saved_checkpoint if attempt._attempt.job.failures else None
    return saved if isinstance(saved, dict) else {}


def keep(attempt: RunContext, *, at_once: bool = False, **values: Any) -> None:
    """Keep more, in the checkpoint of the job; with ``at_once`` also outside of the open
    transaction. Of two calls in one attempt the second prevails."""
    attempt._keep({**kept(attempt), **values}, at_once=at_once)
