"""Worker processes on the benchmark's database. None outlives the measurement that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from django.db import connection

from .database import fetch, until

PATIENCE = 40.0
"""Seconds that a worker gets to drain; its own limit is 25 and a little."""

UP = "SELECT count(*) FROM django_jobs_worker WHERE status = 'running'"

DEMO = "testproject.settings"


@contextmanager
def running_worker(
    *arguments: str, processes: int = 1, settings: str = "tests.benchmarks.settings"
) -> Iterator[subprocess.Popen[bytes]]:
    """A ``jobworker`` that is up, and gone when the ``with`` block ends, however it ends."""
    before = fetch(UP)[0][0]
    command = ["--processes", str(processes), *arguments]
    worker = _start(*command, settings=settings)
    try:
        until(lambda: _alive(worker) and fetch(UP)[0][0] >= before + processes)
        yield worker
    finally:
        stop(worker)


def run_worker(*arguments: str, timeout: float = 600) -> None:
    """A ``jobworker --burst``, to its end."""
    worker = _start("--burst", *arguments)
    try:
        if worker.wait(timeout) != 0:
            raise RuntimeError(f"jobworker ended with {worker.returncode}")
    finally:
        stop(worker)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, if it is running."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(PATIENCE)
    except BaseException:  # a worker's tree leaves with its supervisor
        process.kill()
        process.wait()
        raise


def _start(*arguments: str, settings: str = "tests.benchmarks.settings") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "django", "jobworker", "--skip-checks", "-v0", *arguments],
        env=environment(settings),
    )


def environment(settings: str) -> dict[str, str]:
    """For a process that is to use the benchmark's database with those settings."""
    name = connection.settings_dict["NAME"]
    url = urlsplit(os.environ["DATABASE_URL"])
    return {
        **os.environ,
        "BENCHMARK_DATABASE_NAME": name,
        "DATABASE_URL": urlunsplit(url._replace(path=f"/{name}")),
        "DJANGO_SETTINGS_MODULE": settings,
    }


def _alive(worker: subprocess.Popen[bytes]) -> bool:
    if worker.poll() is not None:
        raise RuntimeError(f"jobworker ended with {worker.returncode}")
    return True
