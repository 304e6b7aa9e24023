"""What became of the processes that handlers forked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .resources import ours


def problems(directory: Path) -> Iterator[tuple[int, str]]:
    """Each that is still there, now that nothing runs."""
    there = ours(directory)
    left = [(job, pid) for job, pid in begun(directory) if pid in there]
    if left:
        yield 14, f"processes of a pool that outlived its handler: {len(left)}, such as {left[:3]}"


def begun(directory: Path) -> list[tuple[int, int]]:
    """Job and process of each."""
    file = directory / "effects.pools"
    lines = file.read_text().splitlines() if file.exists() else ()
    return [(int(job), int(pid)) for job, _, pid in map(str.split, lines)]
