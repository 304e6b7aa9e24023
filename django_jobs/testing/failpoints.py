"""Faults at exact places of the worker, for tests and drills: ``DJANGO_JOBS_FAULT``.

With ``DJANGO_JOBS_FAULT=before_settle:kill``, the first process of the tree that is about to write
endings kills itself. ``before_settle:kill:3`` means the third passage, counted over the whole tree.
Commas separate several faults. Each happens once per tree, so the process that replaces a dead one
lives.

A worker without the variable runs its functions unchanged. With it, :func:`install` replaces those
that pass a point, where they are looked up, before anything is forked.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError
from django.db import OperationalError

from ..lifecycle import claiming, opening, reaping, settling, workers
from ..lifecycle.workflows import starting
from ..worker.events import emit
from ..worker.execution import handler_call, isolation
from ..worker.process import settler, worker_process

VARIABLE = "DJANGO_JOBS_FAULT"
MOST_PASSAGES = 4_000
"""As many bytes as fit into the smallest pipe that Linux may give."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a fault can be put: the functions that pass it, each as its owner and its name there.
    With ``after``, a fault comes after a function that returned something: a claim, a job."""

    places: tuple[tuple[Any, str], ...]
    after: bool = False


POINTS = {
    "after_claim": Point(((claiming, "claim"),), after=True),
    "before_handler": Point(((handler_call, "_call"), (handler_call, "_acall"))),
    # The handler has returned. With ``exactly_once`` its transaction is still open.
    "after_handler": Point(((handler_call, "_success"),)),
    "before_settle": Point(
        (
            (settler, "settle_with_fallback"),
            (isolation, "settle_with_fallback"),
            (handler_call, "settle"),
        )
    ),
    # Committed, and the process does not know it yet.
    "after_settle": Point(
        (
            (settler, "settle_with_fallback"),
            (isolation, "settle_with_fallback"),
            (handler_call, "_call_in_transaction"),
        ),
        after=True,
    ),
    # The ends of steps are written, and all until after_opening is one transaction with them.
    "before_opening": Point(((settling, "open_next"),)),
    "before_skip": Point(((opening, "_skip"),)),
    "after_skip": Point(((opening, "_skip"),), after=True),
    "before_count_ends": Point(((opening, "count_ends"),)),
    "before_compensation": Point(((opening, "compensate"),)),
    "after_compensation": Point(((opening, "compensate"),), after=True),
    "after_opening": Point(((settling, "open_next"),), after=True),
    # A run is written, and its steps are not; and both, in a transaction that is still open.
    "before_steps": Point(((starting, "insert_steps"),)),
    "after_steps": Point(((starting, "insert_steps"),), after=True),
    "before_beat": Point(((workers, "renew"),)),
    "after_beat": Point(((workers, "renew"),), after=True),
    "before_recovery": Point(((reaping, "recover_process"),)),
    # The worker process is about to ask for a child that runs the job alone.
    "before_isolate": Point(((worker_process.WorkerProcess, "_isolate"),)),
}


def _raise() -> None:
    raise OperationalError("a fault was asked for here")


ACTIONS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # Sent to the thread: sent to the process, it might take effect a moment after this thread
    # continued.
    "stop": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "exit": lambda: os._exit(0),
    "raise": _raise,
}


class Fault:
    """One requested fault. It must be made before the fork, because it counts the passages of all
    processes.

    The count is a pipe with a byte for each passage up to the one that fails. Reading a byte is one
    step among all processes and threads, and a process killed there leaves no lock behind.
    """

    def __init__(self, point: str, action: str, passage: int) -> None:
        self.point, self.action, self.passage = point, action, passage
        self._passages, end = os.pipe()
        os.write(end, b"." * (passage - 1) + b"!")
        os.close(end)
        weakref.finalize(self, os.close, self._passages)

    def __str__(self) -> str:
        return f"{self.point}:{self.action}:{self.passage}"

    def pass_by(self) -> None:
        """Count a passage of the point, and act if it is the requested one."""
        if os.read(self._passages, 1) == b"!":
            emit("fault_made", logging.WARNING, fault=str(self), pid=os.getpid())
            ACTIONS[self.action]()

    def put_in_place(self) -> None:
        """Replace the functions that pass the point by ones that call :meth:`pass_by`."""
        point = POINTS[self.point]
        for owner, name in point.places:
            setattr(owner, name, self._around(getattr(owner, name), point.after))

    def _around(self, function: Callable[..., Any], after: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def passing(*args: Any, **kwargs: Any) -> Any:
            if not after:
                self.pass_by()
            result = function(*args, **kwargs)
            if after and result:
                self.pass_by()
            return result

        return passing


def install(environ: Mapping[str, str]) -> None:
    """Install the faults that ``DJANGO_JOBS_FAULT`` names, and log them; without the variable do
    nothing. Call it once, before anything is forked.

    Raises :class:`CommandError` for an unknown point or action or a wrong passage, and lists what
    is known.
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return
    faults = [_asked(part.strip()) for part in text.split(",")]
    for point, action, passage in faults:
        Fault(point, action, passage).put_in_place()
    emit("fault_points", logging.WARNING, faults=text, reason=f"{VARIABLE} is set")


def _asked(text: str) -> tuple[str, str, int]:
    point, _, rest = text.partition(":")
    action, _, passage = rest.partition(":")
    if point not in POINTS:
        raise CommandError(f"{VARIABLE}: no point is named {point!r}; known: {', '.join(POINTS)}")
    if action not in ACTIONS:
        raise CommandError(
            f"{VARIABLE}: no action is named {action!r}; known: {', '.join(ACTIONS)}"
        )
    passage = passage or "1"
    if not (passage.isascii() and passage.isdecimal() and 1 <= int(passage) <= MOST_PASSAGES):
        raise CommandError(
            f"{VARIABLE}: a passage is a number from 1 to {MOST_PASSAGES}, not {passage!r}"
        )
    return point, action, int(passage)
