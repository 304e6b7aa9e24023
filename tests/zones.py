"""Private time zone tables: one zone, whose clock differs from UTC by a fixed time."""

from __future__ import annotations

import struct
import zoneinfo
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from django_jobs.domain import due_times, schedules

TOWN = "Test/Town"


def write_tables(folder: Path, offset: timedelta) -> str:
    """Write tables in which :data:`TOWN` has this offset; return their folder."""
    file = folder / TOWN
    file.parent.mkdir(parents=True, exist_ok=True)
    counts = (0, 0, 0, 0, 1, 3)  # one type of time, and its name of three bytes
    seconds = int(offset.total_seconds())
    kind = struct.pack(">lBB", seconds, False, 0)
    file.write_bytes(b"TZif" + bytes(16) + struct.pack(">6l", *counts) + kind + b"TT\0")
    return str(folder)


@contextmanager
def tables(folder: Path, offset: timedelta) -> Iterator[None]:
    """As if this process had begun with these tables."""
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([write_tables(folder, offset), *before])
    _forget()
    try:
        yield
    finally:
        zoneinfo.reset_tzpath(before)
        _forget()


def _forget() -> None:
    zoneinfo.ZoneInfo.clear_cache()
    schedules._first_two.cache_clear()
    due_times.stretches.cache_clear()
