"""How much more time a larger task takes than a smaller one, both measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

ROUNDS = 5


def growth(small: Callable[[], object], large: Callable[[], object]) -> float:
    """The processor time of ``large`` in that of ``small``: the least of a few, in turn."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for function, seconds in zip((small, large), spent, strict=True):
            began = time.thread_time()
            function()
            seconds.append(time.thread_time() - began)
    return min(spent[1]) / min(spent[0])
