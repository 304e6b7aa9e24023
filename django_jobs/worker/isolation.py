"""A child that runs one job alone, so that what kills it harms nobody else."""

from __future__ import annotations

import time

from ..exceptions import LeaseLost
from ..lifecycle.claiming import held_by
from ..lifecycle.settling import Ending, Settled
from . import attempt
from .board import Slot
from .connections import HandlerConnections, persistent
from .links import Link
from .loop import HandlerLoop
from .settler import settle_readably, tell


def run(link: Link, slot: Slot, worker: int, job_id: int, index: int) -> int:
    """Run one held job, settle it, and say so on the link: an exit code could be the handler's.

    The row is read anew, so that only its number has to come through the pipe.
    """
    _run(link, slot, worker, job_id, index)
    link.send(verb="settled")
    return 0


def _run(link: Link, slot: Slot, worker: int, job_id: int, index: int) -> None:
    connections = HandlerConnections()
    held = persistent(lambda: held_by(worker, [job_id]), what="read the job")
    if not held:
        return
    job = held[0]
    loop = HandlerLoop()
    started = time.monotonic()

    told_to_stop = False

    def should_stop() -> bool:
        nonlocal told_to_stop
        told_to_stop = told_to_stop or _hears_anything(link)
        return told_to_stop or slot.cancel_asked(index) or slot.worker != worker

    connections.prepare()
    try:
        outcome = attempt.make(job, should_stop=should_stop, run_async=loop.run, started=started)
    except LeaseLost:
        return
    finally:
        connections.clean()
    if isinstance(outcome, Settled):
        tell([outcome])
        return
    ending = Ending(job, outcome, started=started, cancel_requested=slot.cancel_asked(index))
    # Only where nobody would take it any more. A job that was run and is still ours must not be
    # left unsettled: it would be given back as one that had never begun.
    settled = persistent(
        lambda: settle_readably([ending]),
        what="settle",
        give_up=lambda: slot.lease_lost or slot.worker != worker,
    )
    tell(settled or ())


def _hears_anything(link: Link) -> bool:
    try:
        return link.receive(0) is not None
    except EOFError:
        return True
