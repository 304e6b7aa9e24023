"""This queue beside others: the same function, called by each one's worker, in turns."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from .database import until
from .measuring import Figure, percentile, progress, repeat
from .others.handler import LINE
from .workers import environment, stop

THREADS = "4"
"""Of each worker, as ours has by default."""

FIRST, PAUSE = 5, 0.06
"""Pickups that are not counted, and seconds between them, longer than our worker lingers."""

PRODUCER = "tests.benchmarks.others"
DJANGO = (sys.executable, "-m", "django")


@dataclass(frozen=True)
class Other:
    """A queue, what it needs and how its worker is started."""

    title: str
    module: str
    worker: tuple[str, ...]


OURS = Other("ours", "django_jobs", (*DJANGO, "jobworker", "--skip-checks", "-v0"))
OTHERS = (
    Other(
        "PgQueuer",
        "pgqueuer",
        (sys.executable, "-m", "tests.benchmarks.others.pgqueuer_worker"),
    ),
    Other(
        "Celery with Redis",
        "celery",
        (
            *(sys.executable, "-m", "celery", "-A", "tests.benchmarks.others.celery_app", "worker"),
            *("--pool", "threads", "--concurrency", THREADS, "--loglevel", "ERROR"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
    ),
    Other(
        "Oban for Python",
        "oban",
        (
            *(sys.executable, "-m", "oban", "start", "--queues", "default:50"),
            *("--log-level", "error", "--cron-modules", "tests.benchmarks.others.oban_worker"),
        ),
    ),
    Other("dj_queue", "dj_queue", (*DJANGO, "dj_queue")),
    Other("django-ox", "django_ox", (*DJANGO, "ox_worker", "--concurrency", THREADS)),
)


@dataclass
class Seen:
    """What one turn of a queue has shown."""

    enqueued: float
    """Enqueues a second, one after the other."""
    start: float
    """Seconds from the start of the worker to its first call."""
    drained: float
    """Calls a second, from the first to the last of those that waited."""
    memory: float
    """Proportional MB of the worker and its children, when all is done."""
    waits: list[float] = field(repr=False)
    """Seconds from the return of an enqueue to the call, by an idle worker."""


def others(times: int, scale: float) -> list[Figure]:
    """Enqueue, drain, pickup, start and memory of each, as a user of its documentation sees it."""
    count, few = max(int(5_000 * scale), 50), max(int(40 * scale), 10)
    with ExitStack() as stack:
        redis = stack.enter_context(_redis())
        chosen = [OURS, *(other for other in OTHERS if _is_installed(other, redis))]
        if chosen == [OURS]:
            return []
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "calls"
        sites = [_Site(other, file, redis) for other in chosen]
        for site in sites:
            site.run("install")
        ours, *theirs = repeat(times, *(lambda site=site: site.turn(count, few) for site in sites))
    return [
        figure
        for other, seen in zip(chosen[1:], theirs, strict=True)
        for figure in _figures(other.title, count, ours, seen)
    ]


def _is_installed(other: Other, redis: str | None) -> bool:
    there = importlib.util.find_spec(other.module) is not None
    there &= other.module != "celery" or redis is not None
    if not there:
        progress.emit(f"others: {other.title} is skipped, it is not installed (the extra 'bench')")
    return there


def _figures(title: str, count: int, ours: list[Seen], theirs: list[Seen]) -> Iterator[Figure]:
    for what, unit, better, value in (
        ("enqueue", "jobs/s", "more", lambda one: one.enqueued),
        (f"drain of {count:,}", "jobs/s", "more", lambda one: one.drained),
        ("pickup, p50", "ms", "less", lambda one: percentile(one.waits, 0.5) * 1_000),
        ("pickup, p99", "ms", "less", lambda one: percentile(one.waits, 0.99) * 1_000),
        ("start of a worker to its first job", "ms", "less", lambda one: one.start * 1_000),
        ("memory of an idle worker", "MB", "less", lambda one: one.memory),
    ):
        mine, its = [*map(value, ours)], [*map(value, theirs)]
        yield Figure(f"ours to {title}, {what}", unit, mine, its, f"{median(its):,.1f}", better)


class _Site:
    """One of the queues on the benchmark's database."""

    def __init__(self, other: Other, file: Path, redis: str | None) -> None:
        self._other, self._file, self._log = other, file, file.with_suffix(".log")
        self._environment = {
            **environment("tests.benchmarks.others.settings"),
            "OTHERS_NAME": other.module,
            "OTHERS_FILE": str(file),
            "OTHERS_REDIS": redis or "",
        }
        self._environment["OBAN_DSN"] = self._environment["DATABASE_URL"]
        if other.worker[:3] != DJANGO:  # Celery would load them
            del self._environment["DJANGO_SETTINGS_MODULE"]

    def turn(self, count: int, few: int) -> Seen:
        """``count`` enqueues, their drain by a new worker, then ``few`` pickups."""
        self._file.write_bytes(b"")
        seconds = float(self.run("enqueue", str(count)))
        waiting = count + 1  # the first connected
        begun = time.time()
        with self._process(*self._other.worker) as worker:
            self._until_called(waiting, worker)
            memory = _memory(worker)
            waits = self._pickups(few, waiting, worker)
        calls = [float(line) for line in self._file.read_text().split()][:waiting]
        first, last = min(calls), max(calls)
        drained = (waiting - 1) / (last - first)
        return Seen(count / seconds, first - begun, drained, memory, waits)

    def run(self, *arguments: str) -> str:
        """A producer, to its end. Returns what it prints."""
        with self._process(*self._producer(*arguments)) as process:
            output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{self._other.title}: {arguments}: {self._log.read_text()}")
        return output.decode()

    def _producer(self, *arguments: str) -> tuple[str, ...]:
        return sys.executable, "-m", PRODUCER, self._other.module, *arguments

    @contextmanager
    def _process(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """What it says goes to a file: a worker logs each job."""
        with (
            self._log.open("ab") as log,
            subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if command[2] == PRODUCER else log,
                stderr=log,
            ) as process,
        ):
            try:
                yield process
            finally:
                stop(process)

    def _until_called(self, count: int, worker: subprocess.Popen[bytes]) -> None:
        def called() -> bool:
            if worker.poll() is not None:
                raise RuntimeError("its worker ended")
            return self._file.stat().st_size >= count * LINE

        try:
            until(called, timeout=120)
        except RuntimeError as error:
            said = self._log.read_text()[-2_000:]
            raise RuntimeError(f"{self._other.title}: {error}\n{said}") from None

    def _pickups(self, few: int, before: int, worker: subprocess.Popen[bytes]) -> list[float]:
        returned = []
        with self._process(*self._producer("each")) as producer:
            assert producer.stdin is not None
            assert producer.stdout is not None
            for number in range(1, FIRST + few + 1):
                producer.stdin.write(b"\n")
                producer.stdin.flush()
                returned.append(float(producer.stdout.readline()))
                self._until_called(before + number, worker)
                time.sleep(PAUSE)
            producer.stdin.close()
            producer.wait()
        calls = [float(line) for line in self._file.read_text().split()][before:]
        return [call - then for call, then in zip(calls, returned, strict=True)][FIRST:]


def _memory(process: subprocess.Popen[bytes]) -> float:
    tree = psutil.Process(process.pid)
    total = 0
    for one in (tree, *tree.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_full_info().pss
    return total / 1e6


@contextmanager
def _redis() -> Iterator[str | None]:
    """A server with its default settings but no file of its own, or None."""
    if shutil.which("redis-server") is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/redis.sock"
        server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", path, "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        try:
            until(lambda: os.path.exists(path), timeout=30)
            yield f"redis+socket://{path}"
        finally:
            stop(server)
