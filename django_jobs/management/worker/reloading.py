"""``jobworker --reload``: starts the worker again when a file of the project has changed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from django.core.management.base import OutputWrapper
from django.utils.autoreload import get_child_arguments

from ...domain.maintenance import MaintenanceTask
from ...worker.events import emit

INSTALLED = ("site-packages", "dist-packages")


def code_watch() -> MaintenanceTask:
    """The maintenance task, which changes no row."""
    return MaintenanceTask(name="code_watch", every=2.0, batch=1, run_once=CodeWatch().look)


class CodeWatch:
    """Warns once of each change to a loaded module of the project.

    It reads the modification time of each module's file: some milliseconds for a thousand.
    """

    def __init__(self) -> None:
        self._seen_until = time.time()

    def look(self) -> int:
        """Check the files. Returns 0, because it changes no row."""
        changed = {path: at for path in project_files() if (at := changed_at(path))}
        newer = sorted(path for path, at in changed.items() if at > self._seen_until)
        if newer:
            self._seen_until = max(changed[path] for path in newer)
            files = ", ".join(map(os.path.relpath, newer))
            emit("code_changed", logging.WARNING, files=files, hint="restart the worker")
        return 0


def project_files() -> Iterator[str]:
    """The source files of the loaded modules, without those of Python and installed packages."""
    library = sysconfig.get_path("stdlib")
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and not path.startswith(library) and not any(part in path for part in INSTALLED):
            yield path


def changed_at(path: str) -> float:
    """When a file was changed; 0 if there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:  # or inside an archive
        return 0.0


LOOK_SECONDS = 0.5


class Reloader:
    """Runs ``jobworker`` as a child process. A signal to this process is passed to the child."""

    def __init__(
        self, arguments: Sequence[str], output: OutputWrapper, parent: int | None = None
    ) -> None:
        """``parent`` is the process whose end ends this one too, if it is the parent."""
        self._arguments = arguments
        self._output = output
        self._parent = parent
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> int:
        """Run until stopped, or until the worker has nothing more to do. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        while True:
            seen = snapshot()
            # In another session, so that Ctrl-C reaches this process only, and the child once.
            self._child = subprocess.Popen(  # noqa: S603 — the command of this process
                self._arguments, start_new_session=True
            )
            changed = self._wait_for_change(seen, until_exit=True)
            code = self._child.poll()
            if code is None:
                if not self._stopping:  # a second signal would stop its handlers
                    self._stop(signal.SIGTERM)
                code = self._child.wait()
            elif not (self._stopping or code == 0):
                self._print(
                    f"The worker ended with exit code {code}. It starts at the next change."
                )
                changed = self._wait_for_change(seen, until_exit=False)
            if self._stopping or not changed:
                return code
            self._print(f"Changed: {', '.join(map(os.path.relpath, changed))}. Starting again.")

    def _wait_for_change(self, seen: dict[str, float], *, until_exit: bool) -> list[str]:
        """The files changed, added or removed; none if it has to stop, or the child has ended."""
        assert self._child is not None
        while not self._stopping:
            if self._parent is not None and os.getppid() != self._parent:
                self._pass_on(signal.SIGTERM)
                break
            found = snapshot()
            if found != seen:
                return sorted({path for path, _ in found.items() ^ seen.items()})
            if until_exit and self._child.poll() is not None:
                break
            time.sleep(LOOK_SECONDS)
        return []

    def _print(self, line: str) -> None:
        self._output.write(line)
        self._output.flush()

    def _pass_on(self, number: int, frame: FrameType | None = None) -> None:
        self._stopping = True
        self._stop(signal.SIGTERM if number == signal.SIGHUP else number)

    def _stop(self, number: int) -> None:
        if self._child is not None:
            self._child.send_signal(number)


def same_command() -> list[str]:
    """The command of this process, without ``--reload``, which may be abbreviated, because no other
    option begins with the same letter, and without the ``--parent`` of it."""
    given = iter(get_child_arguments())
    kept = []
    for one in given:
        name = one.partition("=")[0]
        if len(name) > 3 and "--parent".startswith(name):
            next(given if name == one else iter(()), None)
        elif len(one) < 3 or not "--reload".startswith(one):
            kept.append(one)
    return kept


def snapshot() -> dict[str, float]:
    """The modification times of the project's source files, also of those that are not loaded."""
    return {path: at for path in set(_source_files()) if (at := changed_at(path))}


def _source_files() -> Iterator[str]:
    packages = set()
    for path in project_files():
        yield path
        if package := _top_package(Path(path)):
            packages.add(package)
    for package in packages:
        yield from map(str, package.rglob("*.py"))


def _top_package(path: Path) -> Path | None:
    top = None
    for folder in path.parents:
        if not (folder / "__init__.py").exists():
            break
        top = folder
    return top
