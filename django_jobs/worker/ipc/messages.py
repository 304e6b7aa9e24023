"""The messages between the processes, and the endings of attempts in other processes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NoReturn


class MessageType(StrEnum):
    """The request or the report of a message."""

    DRAIN = "drain"
    """To a worker or an isolated child: claim nothing more, with the reason, which is empty if the
    worker's row has it. From the heartbeat: an operator asked a worker to drain."""
    STOP = "stop"
    """To a worker or an isolated child: stop handlers now."""
    ISOLATE = "isolate"
    """From a worker: run a job in a separate process."""
    ISOLATED = "isolated"
    """To a worker: that process has ended."""
    SETTLED = "settled"
    """From an isolated child: its job is settled."""
    NEVER_BEGAN = "never_began"
    """From an isolated child: its job did not start, because there was no connection."""
    INSPECT = "inspect"
    """From a worker: wake an isolated child, which was asked what it is doing."""
    RECYCLES = "recycles"
    """From a worker: it drains because it is to be replaced."""
    RECOVER = "recover"
    """To the heartbeat: settle the jobs of a dead process."""
    RECOVERED = "recovered"
    """From the heartbeat: the jobs are settled, or left to the reaper."""
    QUIT = "quit"
    """To the heartbeat: exit."""


class AttemptEnd(StrEnum):
    """How an attempt ended whose process was killed, died or could not be forked."""

    LOST = "lost"
    """Its process died, and other jobs ran in it."""
    CRASHED = "crashed"
    """Its process died, and no other job ran in it."""
    TIMED_OUT = "timed_out"
    SILENT = "silent"
    CANCELLED = "cancelled"
    FORCED = "forced"
    """Its job was stopped by force."""
    NEVER_BEGAN = "never_began"
    RELEASED = "released"
    """Its process was killed because of something else."""


class UnexpectedMessage(Exception):
    """A message that its receiver does not know. All processes run the same code, so this is a
    bug."""


def refuse(message: dict[str, Any]) -> NoReturn:
    """Raise :class:`UnexpectedMessage`."""
    raise UnexpectedMessage(f"unexpected message: {message}")
