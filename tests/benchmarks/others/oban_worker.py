"""The handler as a worker of Oban."""

from __future__ import annotations

from typing import Any

from oban import worker

from .handler import note


@worker(queue="default")
class Note:
    """It has no thread pool: the function is called in its event loop."""

    async def process(self, job: Any) -> None:
        note()
