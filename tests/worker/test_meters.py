"""What measures an attempt in a thread."""

from __future__ import annotations

import threading
import time

import pytest

from django_jobs.domain.run_cost import RunCost
from django_jobs.worker.meters import SHORT_SECONDS, Meter, ThreadMeter


def test_the_running_time_of_a_short_run_is_taken_for_its_cpu_time() -> None:
    short = SHORT_SECONDS / 2
    assert ThreadMeter(counts_queries=False).read(short) == RunCost(cpu_seconds=short)


def test_the_cpu_time_of_a_longer_run_is_read() -> None:
    meter = ThreadMeter(counts_queries=False)
    began = time.thread_time()
    while time.thread_time() - began < 0.05:
        pass
    cpu_seconds = meter.read(60.0).cpu_seconds
    assert cpu_seconds is not None
    assert 0.05 <= cpu_seconds < 5


@pytest.mark.parametrize("kind", [Meter, ThreadMeter])
def test_queries_of_several_threads_are_all_counted(kind: type[Meter]) -> None:
    meter, others = kind(counts_queries=True), 4

    def ask() -> None:
        for _ in range(5_000):
            meter.add_query(0.25)

    threads = [threading.Thread(target=ask) for _ in range(others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (meter.read(0.0).queries, meter.query_seconds) == (20_000, 5_000.0)
    assert kind(counts_queries=False).read(0.0).queries is None
