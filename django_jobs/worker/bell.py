"""Sleep that others can end."""

from __future__ import annotations

import threading


class Bell:
    """One thread sleeps, any other may ring. A ring while nobody sleeps ends the next sleep."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rung = False

    def ring(self) -> None:
        """End the sleep."""
        with self._condition:
            self._rung = True
            self._condition.notify()

    def sleep(self, seconds: float) -> bool:
        """Sleep for at most ``seconds``; whether somebody rang."""
        with self._condition:
            if not self._rung:
                self._condition.wait(seconds)
            rung, self._rung = self._rung, False
            return rung
