"""What the processes say to each other, and how an attempt ended that a process lost."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NoReturn


class MessageType(StrEnum):
    """What a message asks for or reports."""

    DRAIN = "drain"
    """To a worker, or to a job that runs alone: take nothing more. From the heartbeat: an operator
    asked it of a worker."""
    STOP = "stop"
    """To a worker, or to a job that runs alone: stop handlers now."""
    ISOLATE = "isolate"
    """From a worker: run a job in a separate process."""
    ISOLATED = "isolated"
    """To a worker: that process has ended."""
    SETTLED = "settled"
    """From a job that runs alone: its end is written."""
    NEVER_BEGAN = "never_began"
    """From a job that runs alone: it did not begin, for want of a connection."""
    RECYCLES = "recycles"
    """From a worker: it drains because it is about to be replaced."""
    RECOVER = "recover"
    """To the heartbeat: settle what a dead process held."""
    RECOVERED = "recovered"
    """From the heartbeat: that is done, or left to the reaper."""
    QUIT = "quit"
    """To the heartbeat: end."""


class AttemptEnd(StrEnum):
    """How an attempt ended whose process was killed, died or could not be made."""

    LOST = "lost"
    """Its process died, and others ran in it."""
    CRASHED = "crashed"
    """Its process died, and nothing else ran in it."""
    TIMED_OUT = "timed_out"
    SILENT = "silent"
    CANCELLED = "cancelled"
    NEVER_BEGAN = "never_began"
    RELEASED = "released"
    """Its process was killed for something else."""


class UnexpectedMessage(Exception):
    """A message that its receiver does not know. All processes run the same code: it is a bug."""


def refuse(message: dict[str, Any]) -> NoReturn:
    """Raise :class:`UnexpectedMessage`."""
    raise UnexpectedMessage(f"unexpected message: {message}")
