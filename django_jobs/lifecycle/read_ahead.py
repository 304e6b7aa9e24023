"""Read what is to be inserted in batches, and prepare one while the one before it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")

BATCH_BYTES = 32 * 2**20
"""The most bytes of a batch, but for its last items: with payloads of 1 MB, 5,000 jobs took 5 GB
more than once."""

FIRST, PART = 16, 250
"""Items that are made before their bytes are counted: at first, and at most."""


class ReadAhead(Generic[S, T]):
    """Batches of what ``make`` returns for each value of a source.

    With ``early``, the values of the next batch are read before a batch is written, and its items
    made meanwhile. Then the values must not change later, and ``make`` must not use the connection.
    Errors are raised when the batch is taken to which they belong. ``size`` returns the bytes of
    items.
    """

    def __init__(
        self,
        source: Iterable[S],
        make: Callable[[S], T],
        *,
        early: bool,
        size: Callable[[list[T]], int] = lambda items: 0,
    ) -> None:
        self._source = iter(source)
        self._make = make
        self._early = early
        self._size = size
        self._values: list[S] = []
        self._made: list[T] = []
        self._made_bytes = 0
        self._error: Exception | None = None
        self.is_over = False
        """Whether all items were taken, once that is known."""

    def take(self, count: int) -> list[T]:
        """The next ``count`` items, fewer if they are large, and at the end."""
        items: list[T] = []
        size, part = 0, FIRST
        while len(items) < count and size < BATCH_BYTES:
            more = self._next(min(part, count - len(items)))
            if not more:
                break
            items += more
            size += self._size(more)
            left = (BATCH_BYTES - size) * len(items) // max(size, 1)
            part = max(1, min(2 * part, PART, left))
        self._made_bytes = self._size(self._made)
        return items

    def _next(self, count: int) -> list[T]:
        """Some of the next items; none at the end."""
        if self._made:
            more = self._made[:count]
            del self._made[:count], self._values[: len(more)]
            return more
        if values := self._values[:count]:
            del self._values[:count]
            return list(map(self._make, values))
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        more = list(map(self._make, islice(self._source, count)))
        self.is_over = len(more) < count
        return more

    def skip(self, count: int) -> int:
        """Take ``count`` items without keeping them. Returns how many there were."""
        return sum(1 for _ in map(self._make, islice(self._source, count)))

    def read(self, count: int) -> None:
        """Read the values of the next ``count`` items, if that may be early."""
        if not self._early or self._error is not None:
            return
        try:
            self._values += islice(self._source, max(count - len(self._values), 0))
        except Exception as error:
            self._error = error

    def make(self, count: int) -> None:
        """Make ``count`` more of the items whose values were read, unless those that were made are
        a batch."""
        if self._made_bytes >= BATCH_BYTES:
            return
        made = len(self._made)
        with suppress(Exception):  # it is made again, and raises, when its batch is taken
            self._made += map(self._make, self._values[made : made + count])
        self._made_bytes += self._size(self._made[made:])
