"""The thread of the heartbeat process that fires schedules on time."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from ..lifecycle.scheduling import SCHEDULES
from .bell import Bell
from .board import Board
from .connections import DATABASE_ERRORS, drop_connection, own_connection, say_rarely
from .lookout import LINGER_SECONDS
from .options import Options
from .wakeup import Wakeup

Look = Callable[[], float]
"""Fires what is due and says in how many seconds to look again, at the latest."""


def run(look: Look, board: Board, options: Options) -> None:
    """Look when the next known due time comes, when a hint says that a schedule was changed, and
    at every poll."""
    own_connection()
    bell = Bell()

    def hear(hint: str | None) -> None:
        if hint in (None, SCHEDULES):
            bell.ring()

    Wakeup(hear).thread.start()
    longest = options.poll
    while True:
        try:
            pause = min(look(), longest)
            board.note_schedules()
        except DATABASE_ERRORS as error:
            drop_connection()
            say_rarely("schedules_failed", logging.WARNING, error=type(error).__name__)
            pause = random.uniform(0.2, 0.5)  # noqa: S311 — jitter
        except Exception as error:  # whatever it is, the schedules of tomorrow are to be fired
            say_rarely("schedules_failed", logging.ERROR, error=repr(error))
            pause = longest
        # A hint may stand for others that came in its shadow.
        longest = LINGER_SECONDS if pause > 0 and bell.sleep(pause) else options.poll
