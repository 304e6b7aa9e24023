"""What a run used."""

from __future__ import annotations

from typing import NamedTuple


class RunCost(NamedTuple):
    """CPU time, memory and queries of one attempt. None is what was not measured. Queries are
    statements that Django sent for it, and the seconds that it waited for them.

    It is a tuple because one is made for each run: a frozen dataclass takes four times as long.
    """

    cpu_seconds: float | None = None
    max_rss_kb: int | None = None
    queries: int | None = None
    query_seconds: float | None = None
