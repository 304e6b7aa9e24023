"""What handlers of tests leave on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path


def mark(path: str) -> None:
    """Append a line with this process's id: one for each time a handler began."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {time.monotonic()}\n")


def mark_and_wait(path: str) -> None:
    """In a process that a handler starts: say so, and wait until the test lets it go."""
    mark(f"{path}.started")
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
