"""Processes that use all the time of a CPU that they get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The pipe closes when its writer ends, also by SIGKILL.
LOOP = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""


@contextmanager
def busy_processes(number: int) -> Iterator[list[int]]:
    """The ids of ``number`` processes, which end with the block, or with this process."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(number):
            processes.append(subprocess.Popen([sys.executable, "-c", LOOP], stdin=subprocess.PIPE))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            assert process.stdin
            process.stdin.close()
