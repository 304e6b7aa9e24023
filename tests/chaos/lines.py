"""The lines that handlers leave in files: one for each execution, whatever becomes of it."""

from __future__ import annotations

import os
import time

from django_jobs import current_run


def leave_a_line() -> int:
    """Append job, attempt, tree, process and time. Returns the attempt."""
    run = current_run()
    assert run is not None
    note("", run.job_id, run.attempt, os.environ["CHAOS_TREE"], os.getpid(), f"{time.time():.6f}")
    return run.attempt


def note(suffix: str, *words: object) -> None:
    """Append them to the file of effects, or with a ``suffix`` to the one next to it, in one write,
    so that lines never mix."""
    path = os.environ["CHAOS_EFFECTS"] + suffix
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)
