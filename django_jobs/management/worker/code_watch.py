"""Notices while a worker runs that its code was changed, for people who develop."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator

from ...worker.events import emit

INSTALLED = ("site-packages", "dist-packages")


class CodeWatch:
    """A maintenance task: warns once of each change of a loaded module of the project.

    One look asks the file system once for each such module, some milliseconds for a thousand.
    """

    name = "code_watch"
    every = 2.0

    def __init__(self) -> None:
        self._seen_until = time.time()

    @property
    def run_once(self) -> Callable[[], int]:
        """Looks at the files. No row is changed."""
        return self._look

    def has_more(self, changed: int) -> bool:
        """All files are looked at each time."""
        return False

    def _look(self) -> int:
        changed = {path: at for path in project_files() if (at := _changed_at(path))}
        newer = sorted(path for path, at in changed.items() if at > self._seen_until)
        if newer:
            self._seen_until = max(changed[path] for path in newer)
            files = ", ".join(map(os.path.relpath, newer))
            emit("code_changed", logging.WARNING, files=files, hint="restart the worker")
        return 0


def project_files() -> Iterator[str]:
    """The source files of the loaded modules that nobody installed."""
    library = sysconfig.get_path("stdlib")
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and not path.startswith(library) and not any(part in path for part in INSTALLED):
            yield path


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # removed, or inside of an archive
        return 0.0
