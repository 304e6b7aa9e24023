"""What a run used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """CPU time, memory and queries of one attempt. None is what was not measured. Queries are
    statements that Django sent for it, and the seconds that it waited for them."""

    cpu_seconds: float | None = None
    max_rss_kb: int | None = None
    queries: int | None = None
    query_seconds: float | None = None
