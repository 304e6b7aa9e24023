"""What a task keeps for later: the arguments of its retry, and the state that it reports."""

from __future__ import annotations

from typing import Any

from ....worker.context.run_context import RunContext

ARGUMENTS = "arguments"
"""``{"payload": ..., "more": ...}`` of the next attempt, as of ``payload_of``."""
HEADERS = "headers"
"""The headers of the next attempt."""
STATE = "state"
META = "meta"


def kept(attempt: RunContext) -> dict[str, Any]:
    """What the attempts before have kept."""
    saved = attempt.saved_checkpoint if attempt.attempt > 1 else None
    return saved if isinstance(saved, dict) else {}


def keep(attempt: RunContext, **values: Any) -> None:
    """Keep more, in the checkpoint of the job."""
    attempt.checkpoint({**kept(attempt), **values})
