"""Measure what an attempt uses."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from ..conf import conf
from ..domain.run_cost import RunCost


class Meter:
    """Counts the queries of one attempt, if the setting asks for that. Subclasses measure more."""

    __slots__ = ("_lock", "counts_queries", "queries", "query_seconds")

    def __init__(self) -> None:
        self.counts_queries = conf().count_queries
        self.queries = 0
        self.query_seconds = 0.0
        self._lock = threading.Lock() if self.counts_queries else None

    def add_query(self, seconds: float) -> None:
        """Count a statement, of any thread of the handler."""
        if self._lock is not None:
            with self._lock:
                self.queries += 1
                self.query_seconds += seconds

    def read(self) -> RunCost:
        """What the attempt has used until now."""
        cpu_seconds, max_rss_kb = self._usage()
        if not self.counts_queries:
            return RunCost(cpu_seconds=cpu_seconds, max_rss_kb=max_rss_kb)
        return RunCost(
            cpu_seconds=cpu_seconds,
            max_rss_kb=max_rss_kb,
            queries=self.queries,
            query_seconds=self.query_seconds,
        )

    def _usage(self) -> tuple[float | None, int | None]:
        """CPU seconds, and memory in kilobytes."""
        return None, None


class ThreadMeter(Meter):
    """Measures the CPU time of the calling thread, from its creation on."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        super().__init__()
        self._began = time.thread_time()

    def _usage(self) -> tuple[float | None, int | None]:
        return time.thread_time() - self._began, None


class ProcessMeter(Meter):
    """Measures this whole process, which runs one attempt, and the processes that it started and
    waited for. The memory is that of the largest of them."""

    __slots__ = ()

    def _usage(self) -> tuple[float | None, int | None]:
        import resource  # not on Windows, where nothing is isolated

        own = resource.getrusage(resource.RUSAGE_SELF)
        others = resource.getrusage(resource.RUSAGE_CHILDREN)
        return _cpu(own) + _cpu(others), max(_kilobytes(own), _kilobytes(others))


class EndedProcessMeter(Meter):
    """Knows what a process used that has ended, from ``os.wait4()``."""

    __slots__ = ("_cpu_seconds", "_max_rss_kb")

    def __init__(self, cpu_seconds: float, max_rss_kb: int) -> None:
        super().__init__()
        self.counts_queries = False  # they ended with it
        self._cpu_seconds = cpu_seconds
        self._max_rss_kb = max_rss_kb

    def _usage(self) -> tuple[float | None, int | None]:
        return self._cpu_seconds, self._max_rss_kb


def meter_of_threads() -> type[Meter] | None:
    """What measures attempts in threads, by the settings; None if nothing does."""
    if conf().run_cost:
        return ThreadMeter
    return Meter if conf().count_queries else None


def usage_of(ended: Any) -> tuple[float, int]:
    """CPU seconds and kilobytes of a process that has ended, from the answer of ``os.wait4()``."""
    return _cpu(ended), _kilobytes(ended)


def _cpu(usage: Any) -> float:
    return float(usage.ru_utime + usage.ru_stime)


def _kilobytes(usage: Any) -> int:
    return int(usage.ru_maxrss) // (1024 if sys.platform == "darwin" else 1)
