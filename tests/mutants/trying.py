"""Runs tests in a copy of the tree with a fault and without it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.clusters import PROJECT, Cluster

from .faults import Fault
from .stages import SECONDS


class Copy:
    """A copy of the tree, and a server for its tests."""

    def __init__(self, root: Path, cluster: Cluster) -> None:
        self.root, self.cluster = root, cluster
        # The tests also start processes elsewhere, which are to import the copy.
        self.environment = {**cluster.environment, "PYTHONPATH": str(root)}
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.check_output(listed, cwd=PROJECT, text=True).split("\0"):
            if (PROJECT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / name, root / name)

    def write(self, module: str, source: bytes) -> None:
        """Write a module. Compiled files go: one of a file as long and as old would be valid."""
        path = self.root / module
        path.write_bytes(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def problem(self, *arguments: str, seconds: int) -> tuple[str, list[str]] | None:
        """What Python reports, and the tests that failed; None if all is well."""
        self.cluster.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        with tempfile.TemporaryFile("w+") as output:
            running = subprocess.Popen(
                [sys.executable, *arguments],
                **{"cwd": self.root, "env": self.environment, "start_new_session": True},
                **{"stdout": output, "stderr": output},
            )
            try:
                if running.wait(seconds) == 0:
                    return None
                output.seek(0)
                text = output.read()
                failed = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", text, re.M)
                return (text.strip() or "no output").splitlines()[-1], failed
            except subprocess.TimeoutExpired:
                return f"hangs for {seconds} s", []
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)
                    running.wait()

    def pytest(self, arguments: Iterable[str], stage: int) -> tuple[str, list[str]] | None:
        given = ("-m", "pytest", "-x", "-q", "--timeout=60", *arguments)
        return self.problem(*given, seconds=SECONDS[stage])


def found_by(copy: Copy, fault: Fault, todo: Iterable[tuple[int, list[str]]]) -> tuple[int, str]:
    """The first stage that finds the fault, and how; (0, why) if none does."""
    source = (copy.root / fault.module).read_bytes()
    doubts: list[str] = []
    name = fault.module.removesuffix(".py").replace("/", ".")
    imports = f"import django; django.setup(); import {name}"
    try:
        copy.write(fault.module, fault.planted(source))
        if problem := copy.problem("-c", imports, seconds=60):
            return 1, f"import: {problem[0]}"
        for stage, arguments in todo:
            problem = copy.pytest(arguments, stage)
            if problem is None:
                continue
            alone = [*problem[1][:1], "-n", "0"] if problem[1] else arguments
            again = copy.pytest(alone, stage)
            copy.write(fault.module, source)
            before = copy.pytest(alone, stage)
            copy.write(fault.module, fault.planted(source))
            if again and not before:
                return stage, problem[1][0] if problem[1] else problem[0]
            doubts.append(f"{problem[0]}, {'also without it' if before else 'not again'}: {alone}")
    finally:
        copy.write(fault.module, source)
    return 0, "; ".join(doubts)
