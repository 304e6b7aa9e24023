"""Forks processes and connects them by pipes: messages, and endings of attempts elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from enum import StrEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import FrameType
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
    """A message unknown to its receiver. All processes run the same code, so this is a bug."""


def refuse(message: dict[str, Any]) -> NoReturn:
    raise UnexpectedMessage(f"unexpected message: {message}")


PR_SET_PDEATHSIG = 1
CRASHED = 70
"""The exit code of a child that ended with an exception of ours."""

STOPS = tuple(number for number in signal.Signals if number.name in ("SIGTERM", "SIGINT", "SIGHUP"))
"""The signals that ask to exit. Not every system has all of them."""

Message = dict[str, Any]
"""Its ``type`` is a :class:`MessageType`."""


class MessagePipe:
    """One end of a pipe for small JSON messages."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, *, type: MessageType, **fields: Any) -> bool:
        """Send a message. Returns False if the other end is closed."""
        try:
            with self._sending:
                self._connection.send_bytes(json.dumps({"type": type, **fields}).encode())
        except OSError:
            return False
        return True

    def receive(self, timeout: float | None = 0.0) -> Message | None:
        """The next message within ``timeout`` seconds, or None. Raises ``EOFError`` if the other
        end is closed, :class:`UnexpectedMessage` for an unknown type."""
        try:
            if not self._connection.poll(timeout):
                return None
            message: Message = json.loads(self._connection.recv_bytes())
        except OSError:
            raise EOFError from None
        try:
            message["type"] = MessageType(message["type"])
        except (KeyError, ValueError):
            refuse(message)
        return message

    def close(self) -> None:
        self._connection.close()


def fork(
    work: Callable[[MessagePipe], int], close_in_child: Iterable[Any], *, outlives_us: bool = False
) -> tuple[int, MessagePipe]:
    """Run ``work`` in a child. Returns its process id and our end of the pipe.

    Call it from a process with one thread and no connection. The child leads a process group, so
    that the processes that it starts can be killed with it. It ignores the signals to exit (the
    supervisor decides about them), reads nothing from the terminal, dies with its parent unless
    ``outlives_us``, closes the ends that are not its own, and leaves by ``os._exit`` with the
    result of ``work``.
    """
    connection, childs = Pipe(duplex=True)
    ours, theirs = MessagePipe(connection), MessagePipe(childs)
    flush()
    parent = os.getpid()
    # A signal to the group that reaches the child before it has closed the parent's wake-up
    # descriptor would arrive at the parent twice.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, signal.SIGCHLD))
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    finally:
        if os.getpid() == parent:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if pid:
        with contextlib.suppress(OSError):  # the child has done it already
            os.setpgid(pid, pid)
        theirs.close()
        return pid, ours
    code = CRASHED
    try:
        _settle_in(parent, outlives_us)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for end in (ours, *close_in_child):
            end.close()
        code = work(theirs)
        for call in _before_exit:
            call()
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


_before_exit: list[Callable[[], None]] = []


def before_exit(call: Callable[[], None]) -> Callable[[], None]:
    """Have each forked process call this at its orderly end, because none runs ``atexit``."""
    _before_exit.append(call)
    return call


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # None where it was closed
            stream.flush()


def ignore_signal(number: int, frame: FrameType | None) -> None:
    """A signal handler that does nothing. A subprocess of a job would inherit SIG_IGN."""


def respected(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """The signals among these that our parent, such as ``nohup``, did not set to be ignored."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _settle_in(parent: int, outlives_it: bool) -> None:
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in respected(STOPS):
        signal.signal(number, ignore_signal)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A background group that reads from its terminal is stopped, and on some systems a writing one.
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    _close_input()
    if sys.platform == "linux" and not outlives_it:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before its death signal was requested
        os._exit(CRASHED)


def _close_input() -> None:
    """Replace stdin by an empty file: a program of a handler does not fail at the terminal."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # None where it was closed
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, sys.stdin.fileno())
        os.close(nothing)


def describe_exit(status: int) -> str:
    """``SIGSEGV`` or ``exit code 3``, from the status of ``waitpid``."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def kill(pid: int) -> None:
    """Send SIGKILL to a child, even one that has exited, and what its handlers started."""
    with contextlib.suppress(OSError):  # no process is left
        os.killpg(pid, signal.SIGKILL)
