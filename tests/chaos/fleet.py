"""Worker trees that are kept running, and everything that is done to them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.clusters import PROJECT


class Tree:
    """One ``jobworker``, started again whenever it is gone."""

    def __init__(self, number: int, directory: Path, environment: dict[str, str]) -> None:
        self.log = directory / f"worker-{number}.log"
        self._name = f"tree-{number}"
        self._environment = {**environment, "CHAOS_TREE": self._name}
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "django", "jobworker", "--skip-checks"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--threads", "2", "--drain-timeout", "2", "--name", self._name],
                cwd=PROJECT,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def keep(self) -> None:
        """Start it again if it is gone."""
        if self.process.poll() is not None:
            self._start()

    def children(self) -> list[psutil.Process]:
        """All of its processes but the supervisor."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def signal_all(self, number: int) -> None:
        """Signal every process of the tree."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def signal_root(self, number: int) -> None:
        """Signal the supervisor."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def signal_one(self, number: int, choice: random.Random) -> None:
        """Signal one child."""
        children = self.children()
        if children:
            with contextlib.suppress(psutil.NoSuchProcess):
                choice.choice(children).send_signal(number)

    def end(self, timeout: float) -> bool:
        """Drain it; False if it had to be killed."""
        self.signal_all(signal.SIGCONT)
        self.signal_root(signal.SIGTERM)
        try:
            self.process.wait(timeout)
            return True
        except subprocess.TimeoutExpired:
            self.signal_all(signal.SIGKILL)
            self.process.wait()
            return False
