"""Fixtures of the tests with real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .processes import JobWorker


@pytest.fixture
def start_worker(transactional_db: None, tmp_path: Path) -> Iterator[Callable[..., JobWorker]]:
    """Start a worker; it is gone when the test ends, and logged no traceback of ours."""
    started: list[JobWorker] = []

    def start(*arguments: str, **environment: str) -> JobWorker:
        log = tmp_path / f"worker-{len(started)}.log"
        started.append(JobWorker(*arguments, log=log, **environment))
        return started[-1]

    yield start
    for worker in started:
        worker.end()
    for worker in started:
        print(f"{worker.log.name}:\n{worker.text()}")  # shown with a test that failed
        assert "Traceback" not in worker.text(), worker.text()
