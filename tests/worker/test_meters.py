"""What measures an attempt in a thread."""

from __future__ import annotations

import threading
import time

import pytest

from django_jobs.domain.run_log import ALL_OF_ITS_TIME, RunCost
from django_jobs.worker.meters import (
    EXACT_SECONDS,
    CountingThreadMeter,
    Meter,
    QueryMeter,
    ThreadClock,
    ThreadMeter,
)


def meter(clock: ThreadClock | None = None) -> ThreadMeter:
    return ThreadMeter(clock or ThreadClock(), time.monotonic())


def counting_meter() -> CountingThreadMeter:
    return CountingThreadMeter(ThreadClock(), time.monotonic())


def spend(seconds: float) -> None:
    """Use the processor for so long."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def test_the_running_time_of_a_short_run_is_taken_for_its_cpu_time() -> None:
    short = EXACT_SECONDS / 2
    assert meter().read(short) == RunCost(cpu_seconds=ALL_OF_ITS_TIME)
    asking = counting_meter()
    assert asking.read(short) == RunCost(ALL_OF_ITS_TIME, None, 0, 0.0)
    asking.add_query(0.25)
    spend(2 * short)
    assert asking.read(short) == RunCost(short, None, 1, 0.25)


def test_the_cpu_time_of_a_longer_run_is_read() -> None:
    began = time.thread_time()
    busy = meter()
    spend(0.05)
    cpu_seconds = busy.read(60.0).cpu_seconds
    assert cpu_seconds is not None
    assert 0.05 <= cpu_seconds <= time.thread_time() - began


def test_what_a_thread_used_before_is_not_of_the_next_run() -> None:
    clock = ThreadClock()
    meter(clock)
    spend(0.05)
    began = time.thread_time()
    cpu_seconds = meter(clock).read(60.0).cpu_seconds
    assert cpu_seconds is not None
    assert cpu_seconds <= time.thread_time() - began


def test_the_clock_is_not_read_again_for_a_run_that_begins_at_once() -> None:
    clock, now = ThreadClock(), time.monotonic()
    first = clock.seconds(now)
    spend(0.001)
    assert clock.seconds(now + EXACT_SECONDS / 2) == first
    assert clock.seconds(now + 2 * EXACT_SECONDS) >= first + 0.001


@pytest.mark.parametrize("counted", [QueryMeter(), counting_meter()])
def test_queries_of_several_threads_are_all_counted(counted: Meter) -> None:
    def ask() -> None:
        for _ in range(5_000):
            counted.add_query(0.25)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cost = counted.read(0.0)
    assert (cost.queries, cost.query_seconds) == (20_000, 5_000.0)


@pytest.mark.parametrize("uncounted", [Meter(), meter()])
def test_queries_are_unknown_if_they_are_not_counted(uncounted: Meter) -> None:
    uncounted.add_query(0.25)
    assert uncounted.read(0.0).queries is None
