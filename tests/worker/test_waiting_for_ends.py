"""Callers that wait for the end of a job, and workers that say when it has ended."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from django_jobs.api import waiting as waiter
from django_jobs.models import Job, JobStatus
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.wakeup import Wakeup
from tests.app.jobs import add, add_async, fail, hold, hold_in_transaction
from tests.patience import PATIENCE

from .processes import Start, let_go, until, until_marked

pytestmark = pytest.mark.processes
LISTENERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE 'LISTEN django_jobs_ends%%'
"""


def listeners() -> int:
    with connection.cursor() as cursor:
        cursor.execute(LISTENERS)
        return int(cursor.fetchone()[0])


def thread_is_gone() -> bool:
    return not any(one.name == "django_jobs-ends" for one in threading.enumerate())


def test_a_caller_gets_the_result_of_a_job_that_it_waits_for(
    start_worker: Start,
) -> None:
    start_worker()
    job = add.enqueue(first=2, second=3)
    assert (job.wait(timeout=PATIENCE), job.result) == (JobStatus.SUCCEEDED, 5)
    assert fail.enqueue().wait(timeout=PATIENCE) == JobStatus.DEAD
    until(thread_is_gone)


@pytest.mark.parametrize("job_type", [hold, hold_in_transaction])
def test_a_worker_wakes_the_caller_before_its_next_look(
    start_worker: Start,
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    job_type: object,
) -> None:
    start_worker()
    monkeypatch.setattr(waiter, "FIRST_LOOK", 3600.0)
    monkeypatch.setattr(waiter, "LONGEST_LOOK", 3600.0)
    job = job_type.enqueue(path=str(path))  # type: ignore[attr-defined]
    until_marked(path)
    threading.Timer(0.3, let_go, [path]).start()  # while the caller waits
    assert job.wait(timeout=PATIENCE) == JobStatus.SUCCEEDED
    until(thread_is_gone)


def test_many_coroutines_wait_with_one_connection(start_worker: Start) -> None:
    jobs = [add_async.enqueue(first=number, second=1) for number in range(40)]
    seen = 0

    async def all_of_them() -> list[JobStatus]:
        nonlocal seen
        waiting = [asyncio.ensure_future(job.await_end(timeout=PATIENCE)) for job in jobs]
        while not (seen := await sync_to_async(listeners)()):
            await asyncio.sleep(0.01)
        await sync_to_async(start_worker)()
        return await asyncio.gather(*waiting)

    assert async_to_sync(all_of_them)() == [JobStatus.SUCCEEDED] * 40
    assert seen == 1
    assert [job.result for job in jobs] == list(range(1, 41))
    until(thread_is_gone)
    assert not Job.objects.live().exists()


@pytest.mark.django_db(transaction=True)
def test_a_listener_says_while_it_hears() -> None:
    slot, ends = Scoreboard(1).slots[0], threading.Event()

    def makes_way() -> bool:
        if ends.is_set() and not slot.listens:
            raise InterruptedError
        return ends.is_set()

    with ThreadPoolExecutor(1) as threads:
        listens = Wakeup(lambda hint: None, makes_way=makes_way, note=slot.note_listening)._run
        listener = threads.submit(listens)
        until(lambda: slot.listens)
        ends.set()
        with pytest.raises(InterruptedError):
            listener.result()
