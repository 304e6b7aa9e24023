"""Worker trees that are kept running, and everything that is done to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.clusters import PROJECT

from .history import Exit
from .timing import DRAIN


class Tree:
    """One ``jobworker``, started again whenever it is gone."""

    def __init__(self, name: str, directory: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = directory / f"worker-{name}.log"
        self._environment = {**environment, "CHAOS_TREE": self.name}
        self.roots: list[int] = []
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.started_at = time.time()
        command = [sys.executable, "-m", "django", "jobworker", "--skip-checks", "--threads", "2"]
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [*command, "--drain-timeout", str(DRAIN), "--name", self.name],
                cwd=PROJECT,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.roots.append(process.pid)
        return process

    def keep(self) -> Exit | None:
        """Start it again if it is gone, and say so."""
        code = self.process.poll()
        if code is None:
            return None
        self.process = self._start()
        return Exit(tree=self.name, at=time.time(), code=code)

    def processes(self) -> list[psutil.Process]:
        """The supervisor, then all below it, as they are now."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def signal_all(self, number: int) -> None:
        """Signal every process of the tree."""
        signal_session(self.process.pid, number)

    def signal_root(self, number: int) -> int:
        """Signal the supervisor. Returns its process id."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return self.process.pid

    def signal_one(self, number: int, share: float) -> int:
        """Signal the child that stands at ``share`` of them. Returns its process id, or 0. What a
        handler has forked is passed over: a pool waits for ever for what a killed process of its
        had in hand, which is Python's business."""
        try:
            children = psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return 0
        if not children:
            return 0
        chosen = children[int(share * len(children))]
        with contextlib.suppress(psutil.NoSuchProcess):
            chosen.send_signal(number)
        return int(chosen.pid)

    def kill(self) -> None:
        """At once, whatever state it is in."""
        self.signal_all(signal.SIGKILL)
        self.process.wait()


def signal_session(root: int, number: int) -> None:
    """Signal what is left of the tree that ``root`` was the supervisor of, that one first. Its
    process group is not all of it: a child that runs one job has one of its own."""
    for pid in (root, *psutil.pids()):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == root:
                os.kill(pid, number)
