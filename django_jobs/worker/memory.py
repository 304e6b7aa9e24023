"""Measures the memory of a process."""

from __future__ import annotations

import os


def resident_megabytes(pid: int | str = "self") -> int:
    """Resident memory of a process, in MB; 0 if the system does not provide it."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            pages = int(statm.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 1_048_576
