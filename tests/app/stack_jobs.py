"""Handlers that are looked into while they run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from django_jobs import current_run, job

from .marks import mark

SECRET = "s3cr3t"


def wait_in_vain(path: str) -> None:
    """Its name and its line are in the stack, and its values are not."""
    password = SECRET + path
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    del password


@job
def stand_still(path: str) -> None:
    """Waits in a function."""
    run = current_run()
    assert run is not None
    run.progress(0.25, "a quarter")
    mark(path)
    wait_in_vain(path)


@job(isolated=True)
def stand_alone(path: str) -> None:
    """The same in a process of its own."""
    mark(path)
    wait_in_vain(path)


async def await_in_vain(path: str) -> None:
    """The same on a loop."""
    while not Path(f"{path}.go").exists():
        await asyncio.sleep(0.01)


@job
async def stand_on_loop(path: str) -> None:
    """Waits in two tasks."""
    mark(path)
    await asyncio.gather(await_in_vain(path), asyncio.create_task(await_in_vain(path)))


@job(isolated=True)
async def stand_alone_on_loop(path: str) -> None:
    """The same in a process of its own."""
    mark(path)
    await await_in_vain(path)
