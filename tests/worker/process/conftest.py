"""Worker processes in the process of the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import Pipe
from typing import Any

import pytest

from django_jobs.worker.ipc.pipes import MessagePipe
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options, QueueShare
from django_jobs.worker.process.worker_process import WorkerProcess
from tests.factories import register_worker


@pytest.fixture
def make_process(transactional_db: None) -> Iterator[Callable[..., WorkerProcess]]:
    """Makes one with these options and a lease of ten minutes. None of its threads was started."""
    with ExitStack() as ending:

        def make(**options: Any) -> WorkerProcess:
            ends = [MessagePipe(end) for end in Pipe()]
            for end in ends:
                ending.callback(end.close)
            given = Options(**{"queues": (QueueShare(name="default"),), **options})
            made = WorkerProcess(ends[0], Scoreboard(1).slots[0], given)
            made._slot.register(register_worker(), time.monotonic() + 600)
            return made

        yield make


@pytest.fixture
def process(make_process: Callable[..., WorkerProcess]) -> WorkerProcess:
    """One with the options by default."""
    return make_process()
