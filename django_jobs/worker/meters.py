"""Measure what an attempt uses, and the memory of a process."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..conf import conf
from ..domain.run_log import ALL_OF_ITS_TIME, RunCost

EXACT_SECONDS = 0.0001
"""CPU times of threads are exact to this. To read one is a system call of a microsecond, which jobs
that do nothing would notice."""

_counting = threading.Lock()


class Meter:
    """Counts the queries of one attempt, if it is asked to. Subclasses measure more."""

    counts_queries = False
    queries = 0
    query_seconds = 0.0

    def add_query(self, seconds: float) -> None:
        """Count a statement, of any thread of the handler."""
        if self.counts_queries:
            with _counting:
                self.queries += 1
                self.query_seconds += seconds

    def read(self, ran: float) -> RunCost:
        """What the attempt has used, which ran for so many seconds."""
        if self.counts_queries:
            return RunCost(*self._usage(ran), self.queries, self.query_seconds)
        return RunCost(*self._usage(ran))

    def _usage(self, ran: float) -> tuple[float | None, int | None]:
        """CPU seconds, and memory in kilobytes."""
        return None, None


class QueryMeter(Meter):
    """Counts queries and measures nothing."""

    counts_queries = True


class ThreadClock:
    """The CPU time of the thread that uses it."""

    __slots__ = ("_read_at", "_seconds")

    def __init__(self) -> None:
        self._read_at = self._seconds = 0.0

    def seconds(self, now: float) -> float:
        """As it was at most :data:`EXACT_SECONDS` before ``now``."""
        if now - self._read_at >= EXACT_SECONDS:
            self._seconds, self._read_at = time.thread_time(), now
        return self._seconds


QUICK = RunCost(ALL_OF_ITS_TIME)
QUICK_WITHOUT_QUERIES = RunCost(ALL_OF_ITS_TIME, None, 0, 0.0)


class ThreadMeter(Meter):
    """Measures the CPU time of the thread of ``clock``, from ``now`` on."""

    def __init__(self, clock: ThreadClock, now: float) -> None:
        self._began = clock.seconds(now)

    def read(self, ran: float) -> RunCost:
        if ran < EXACT_SECONDS and not self.queries:
            return QUICK_WITHOUT_QUERIES if self.counts_queries else QUICK
        return super().read(ran)

    def _usage(self, ran: float) -> tuple[float, None]:
        return min(time.thread_time() - self._began, ran), None


class CountingThreadMeter(ThreadMeter):
    """The same, which counts queries."""

    counts_queries = True


class ProcessMeter(Meter):
    """Measures this whole process, which runs one attempt, and the processes that it started and
    waited for. The memory is that of the largest of them."""

    def __init__(self, *, counts_queries: bool) -> None:
        self.counts_queries = counts_queries

    def _usage(self, ran: float) -> tuple[float | None, int | None]:
        import resource  # not on Windows, where nothing is isolated

        own = resource.getrusage(resource.RUSAGE_SELF)
        others = resource.getrusage(resource.RUSAGE_CHILDREN)
        return _cpu(own) + _cpu(others), max(_kilobytes(own), _kilobytes(others))


class EndedProcessMeter(Meter):
    """Knows what a process used that has ended, from ``os.wait4()``. The counter ended with it."""

    def __init__(self, cpu_seconds: float, max_rss_kb: int) -> None:
        self._cpu_seconds = cpu_seconds
        self._max_rss_kb = max_rss_kb

    def _usage(self, ran: float) -> tuple[float | None, int | None]:
        return self._cpu_seconds, self._max_rss_kb


def meter_of_threads() -> Callable[[ThreadClock, float], Meter] | None:
    """Makes what measures an attempt in a thread, by the settings; None if nothing does."""
    if conf().run_cost:
        return CountingThreadMeter if conf().count_queries else ThreadMeter
    return (lambda _clock, _now: QueryMeter()) if conf().count_queries else None


def meter_of_queries() -> Callable[[], Meter] | None:
    """Makes what counts the queries of an attempt; None if the settings do not ask for that."""
    return QueryMeter if conf().count_queries else None


def usage_of(ended: Any) -> tuple[float, int]:
    """CPU seconds and kilobytes of a process that has ended, from the answer of ``os.wait4()``."""
    return _cpu(ended), _kilobytes(ended)


def _cpu(usage: Any) -> float:
    return float(usage.ru_utime + usage.ru_stime)


def _kilobytes(usage: Any) -> int:
    return int(usage.ru_maxrss) // (1024 if sys.platform == "darwin" else 1)


def resident_megabytes(pid: int | str = "self") -> int:
    """Resident memory of a process, in MB; 0 if the system does not provide it."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            pages = int(statm.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 1_048_576
