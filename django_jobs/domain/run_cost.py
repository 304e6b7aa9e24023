"""What a run used."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

ALL_OF_ITS_TIME = inf
"""In place of CPU seconds: the seconds that the attempt ran. So thousands of short attempts have
one cost in common."""


class RunCost(NamedTuple):
    """CPU time, memory and queries of one attempt. None is what was not measured. CPU seconds may
    be :data:`ALL_OF_ITS_TIME`. Queries are statements that Django sent for it, and the seconds that
    it waited for them.

    It is a tuple because one is made for each run: a frozen dataclass takes four times as long.
    """

    cpu_seconds: float | None = None
    max_rss_kb: int | None = None
    queries: int | None = None
    query_seconds: float | None = None
