"""Read what is to be inserted in batches, and prepare one while the one before it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class ReadAhead(Generic[S, T]):
    """Batches of what ``make`` returns for each value of a source.

    With ``early``, the values of the next batch are read before a batch is written, and its items
    made meanwhile. Then the values must not change later, and ``make`` must not use the connection.
    Errors are raised when the batch is taken to which they belong.
    """

    def __init__(self, source: Iterable[S], make: Callable[[S], T], *, early: bool) -> None:
        self._source = iter(source)
        self._make = make
        self._early = early
        self._values: list[S] = []
        self._made: list[T] = []
        self._error: Exception | None = None

    def take(self, count: int) -> list[T]:
        """The next ``count`` items, fewer at the end."""
        items, values, error = self._made, self._values, self._error
        self._made, self._values, self._error = [], [], None
        items += map(self._make, values[len(items) :])
        if error is not None:
            raise error
        items += map(self._make, islice(self._source, count - len(items)))
        return items

    def skip(self, count: int) -> int:
        """Take ``count`` items without keeping them. Returns how many there were."""
        return sum(1 for _ in map(self._make, islice(self._source, count)))

    def read(self, count: int) -> None:
        """Read the values of the next ``count`` items, if that may be early."""
        if not self._early:
            return
        try:
            self._values += islice(self._source, count)
        except Exception as error:
            self._error = error

    def make(self, count: int) -> None:
        """Make ``count`` more of the items whose values were read."""
        made = len(self._made)
        with suppress(Exception):  # it is made again, and raises, when its batch is taken
            self._made += map(self._make, self._values[made : made + count])
