"""Handlers that report, go on where they were, and call outside once."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from django.db import transaction

from django_jobs import Backoff, RunContext, Snooze, current_run, job

from .marks import mark
from .models import Effect


def this_run() -> RunContext:
    """The run of the calling handler."""
    run = current_run()
    assert run is not None
    return run


def pause(path: str) -> None:
    """In the first attempt, say on disk that it is here, and wait to be let go or cancelled."""
    run = this_run()
    if run.attempt == 1:
        mark(path)
        while not Path(f"{path}.go").exists() and not run.should_stop():
            time.sleep(0.01)


@job(backoff=Backoff.fixed(0.05))
def import_numbers(path: str, count: int, pause_at: int, inside: bool) -> int:
    """One row for each number, the checkpoint inside its transaction or after it; returns where
    this attempt began."""
    run = this_run()
    first: int = run.saved_checkpoint or 0
    for number in range(first, count):
        with transaction.atomic():
            Effect.objects.create(job_id=run.job_id, note=str(number))
            if inside:
                run.checkpoint(number + 1)
        if not inside:
            run.checkpoint(number + 1)
        run.progress((number + 1) / count, f"number {number}")
        if number + 1 == pause_at:
            pause(path)
    return first


@job(backoff=Backoff.fixed(0.05))
def walk(path: str, pause_at: int, inside: bool) -> int:
    """One row for each source, read with ``iterate``; returns how many this attempt made."""
    run = this_run()
    made = 0
    rows = run.iterate(Effect.objects.filter(note="source"), chunk=100)
    for source in rows:
        with transaction.atomic():
            Effect.objects.create(job_id=run.job_id, note=f"of {source.pk}")
            if inside:
                rows.done()
        made += 1
        if made == pause_at:
            pause(path)
    return made


@job(isolated=True)
def walk_alone(path: str, pause_at: int) -> int:
    """The same in a process of its own."""
    return walk(path, pause_at, True)


@job
async def walk_async(path: str, pause_at: int) -> int:
    """The same on the loop."""
    run = this_run()
    made = 0
    async for source in run.iterate(Effect.objects.filter(note="source"), chunk=100):
        await Effect.objects.acreate(job_id=run.job_id, note=f"of {source.pk}")
        made += 1
        if made == pause_at and run.attempt == 1:
            mark(path)
            while not Path(f"{path}.go").exists():
                await asyncio.sleep(0.01)
    return made


@job(backoff=Backoff.fixed(0.05))
async def report_async() -> object:
    """Reports from the loop and fails; the second attempt returns what the first one saved."""
    run = this_run()
    if run.attempt > 1:
        return run.saved_checkpoint
    for number in range(1000):
        run.progress(number / 1000, "on the loop")
        run.checkpoint({"number": number})
    raise ConnectionError("half way")


@job(isolated=True)
def nap_alone(path: str) -> object:
    """Sleeps until it is stopped, says so as its last report, and returns that the next time."""
    run = this_run()
    if run.attempt > 1:
        return run.saved_checkpoint
    mark(path)
    try:
        time.sleep(600)
    finally:
        run.checkpoint("cleaned up")
    return None


@job(isolated=True)
async def nap_alone_async(path: str) -> object:
    """The same on a loop."""
    run = this_run()
    if run.attempt > 1:
        return run.saved_checkpoint
    mark(path)
    try:
        await asyncio.sleep(600)
    finally:
        run.checkpoint("cleaned up")
    return None


@job
def leave_when_draining(path: str) -> int:
    """Works until its worker is told to end; the next attempt says which it is."""
    run = this_run()
    if run.attempt > 1:
        return run.attempt
    mark(path)
    while not run.draining():
        assert not run.should_stop()
        time.sleep(0.01)
    raise Snooze(0, reason="the worker drains")


@job(isolated=True)
def leave_when_draining_alone(path: str) -> int:
    """The same in a process of its own."""
    return leave_when_draining(path)


@job(isolated=True)
def ask_all_the_time(path: str) -> None:
    """Does nothing but ask whether it should stop; once more while it cleans up."""
    run = this_run()
    mark(path)
    try:
        while True:
            run.should_stop()
    finally:
        assert run.should_stop()
        Path(f"{path}.cleaned").touch()


@job(isolated=True)
def start_program(path: str) -> None:
    """Waits for a program that it started."""
    program = os.posix_spawnp("sleep", ["sleep", "600"], os.environ)
    Path(f"{path}.program").write_text(str(program))
    mark(path)
    os.waitpid(program, 0)
