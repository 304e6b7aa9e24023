"""Jobs that do something: sleep, await, or use the ORM."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.app.async_jobs import nap_async
from tests.app.jobs import nap, update_effect
from tests.app.models import Effect

from .database import empty, execute, fetch, fill, until_all_done
from .measuring import Figure, percentile, turns
from .workers import run_worker, running_worker

SPAN = """
SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM django_jobs_run
"""
LAG = """
SELECT extract(epoch FROM run.started_at - run.available_at)::float8
FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = run.job_id
WHERE (job.payload ->> 'seconds')::float8 < 1
"""
ARRIVALS = """
SELECT extract(epoch FROM created_at - min(created_at) OVER ())::float8,
    (payload ->> 'seconds')::float8
FROM django_jobs_job ORDER BY id
"""
SPANS = """
SELECT job.job_type, extract(epoch FROM max(run.finished_at) - min(run.claimed_at))::float8
FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = run.job_id
GROUP BY job.job_type
"""
THREADS = 8


def slow_jobs(times: int, scale: float) -> list[Figure]:
    """80 jobs of one second on two workers of four threads; and quick jobs between slow ones."""
    jobs, seconds = max(int(80 * scale), 16), 1.0
    spans: list[float] = []
    lags: list[float] = []
    raw_lags: list[float] = []
    for _ in turns(times):
        empty()
        with running_worker("--threads", "4"), running_worker("--threads", "4"):
            nap.enqueue_many({"seconds": seconds} for _ in range(jobs))
            until_all_done()
            spans.append(float(fetch(SPAN)[0][0]))
            execute("DELETE FROM django_jobs_run")  # the workers stay
            execute("DELETE FROM django_jobs_job")
            # One in a hundred is slow, so that threads are left; no quick one must wait behind it.
            for number in range(max(int(400 * scale), 40)):
                nap.enqueue(seconds=2.0 if number % 100 == 0 else 0.005)
            until_all_done()
        lags.append(percentile([lag for (lag,) in fetch(LAG)], 0.99) * 1_000)
        raw_lags.append(percentile(_lags_in_a_pool(fetch(ARRIVALS)), 0.99) * 1_000)
    ideal = [jobs / THREADS * seconds] * times
    return [
        Figure(f"{jobs} jobs of 1 s, two workers of 4 threads", "s", spans, ideal, "the ideal",
               "less"),
        Figure("start lag of 5 ms jobs between 2 s jobs, p99", "ms", lags, raw_lags,
               "a thread pool in memory, same arrivals", "less"),
    ]  # fmt: skip


def _lags_in_a_pool(arrivals: list[tuple[float, float]]) -> list[float]:
    """What the quick ones would wait for a thread if there were no queue at all."""
    lags: list[float] = []

    def work(submitted: float, seconds: float) -> None:
        if seconds < 1:
            lags.append(time.perf_counter() - submitted)
        time.sleep(seconds)

    with ThreadPoolExecutor(THREADS) as pool:
        begun = time.perf_counter()
        for offset, seconds in arrivals:
            time.sleep(max(begun + offset - time.perf_counter(), 0))
            pool.submit(work, time.perf_counter(), seconds)
    return lags


def async_handlers(times: int, scale: float) -> list[Figure]:
    """1,000 async handlers that await a second in one process, alone and with 10,000 plain jobs."""
    count, plain = max(int(1_000 * scale), 20), max(int(10_000 * scale), 200)
    alone: list[float] = []
    mixed: list[float] = []
    rates: list[float] = []
    for _ in turns(times):
        for more in (0, plain):
            empty()
            nap_async.enqueue_many({"seconds": 1.0} for _ in range(count))
            fill(more)
            run_worker("--async-concurrency", str(count))
            spans = dict(fetch(SPANS))
            (mixed if more else alone).append(spans.pop(nap_async.name))
            rates += [plain / seconds for seconds in spans.values()]
    ideal = [1.0] * times
    name = f"{count:,} async handlers that await 1 s"
    return [
        Figure(f"{name}, in one process", "s", alone, ideal, "one of them", "less"),
        Figure(f"{name}, with {plain:,} plain jobs", "s", mixed, alone, "them alone", "less"),
        Figure(f"{plain:,} plain jobs with them", "jobs/s", rates),
    ]  # fmt: skip


def orm_handlers(times: int, scale: float) -> list[Figure]:
    """CPU that the queue adds to a handler of one SELECT and one UPDATE. One thread on both sides:
    what two threads cost each other in one process is not the queue's."""
    count = max(int(5_000 * scale), 1_000)  # of fewer, a worker's boot is the larger part
    values, raws = [], []
    for _ in turns(times):
        empty()
        Effect.objects.all().delete()
        effects = Effect.objects.bulk_create(Effect(note="0") for _ in range(count))
        update_effect.enqueue_many({"pk": effect.pk} for effect in effects)
        spent = _children_cpu(lambda: run_worker("--threads", "1"))
        boot = _children_cpu(lambda: run_worker("--threads", "1"))
        begun = resource.getrusage(resource.RUSAGE_SELF)
        for effect in effects:
            update_effect(pk=effect.pk)
        after = resource.getrusage(resource.RUSAGE_SELF)
        bare = after.ru_utime + after.ru_stime - begun.ru_utime - begun.ru_stime
        values.append((spent - boot - bare) / count * 1e6)
        raws.append(bare / count * 1e6)
    name = "CPU that the queue adds to a handler with the ORM"
    return [Figure(name, "µs", values, raws, "the handler alone", "less", "150 µs")]


def _children_cpu(work: Callable[[], None]) -> float:
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - begun.ru_utime - begun.ru_stime
