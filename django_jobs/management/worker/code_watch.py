"""Warns a developer that the code of a running worker has changed."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import time
from collections.abc import Iterator

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
