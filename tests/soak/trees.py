"""The workers that are looked at. Unlike those of the chaos test they are never started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.clusters import PROJECT
from tests.patience import PATIENCE


class Tree:
    """One ``jobworker`` with all of its processes."""

    def __init__(self, number: int, directory: Path, environment: Mapping[str, str]) -> None:
        self.log = directory / f"worker-{number}.log"
        command = [sys.executable, "-m", "django", "jobworker", "--skip-checks", "-v0"]
        with self.log.open("wb") as output:
            self._root = subprocess.Popen(
                [*command, "--threads", "4", "--drain-timeout", "10", "--name", f"soak-{number}"],
                cwd=PROJECT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether its supervisor is gone, which it is not to be."""
        return self._root.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """All of its processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._root.pid)
            return [root, *root.children(recursive=True)]
        return []

    def drain(self) -> bool:
        """Let it end; False if it had to be killed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._root.pid, signal.SIGTERM)
        try:
            return self._root.wait(PATIENCE) == 0
        except subprocess.TimeoutExpired:
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._root.wait()
            return False
