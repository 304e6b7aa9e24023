"""What handlers found on their connections."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CLEAN = ["", '"$user",public', "", 0]
"""No setting, the usual search path, the role that logged in, no advisory lock."""


def problems(effects: Path) -> Iterator[tuple[int, str]]:
    """Each look at a session that finds what another handler has left."""
    found = [(job, json.loads(text)) for job, _, _, _, text in _looks(effects)]
    dirty = [(job, session) for job, session in found if session != CLEAN]
    if dirty:
        yield 12, f"sessions that were not clean: {len(dirty)} of {len(found)}, such as {dirty[:3]}"


def counted(effects: Path) -> Counter[str]:
    """How many left something, and how many looked on the same thread after such a one."""
    counts: Counter[str] = Counter()
    left_by: dict[tuple[str, str], str] = {}
    for _, pid, thread, left, _ in _looks(effects):
        counts["settings, roles and locks left"] += left != "nothing"
        counts["looks at a session after one"] += left_by.get((pid, thread), "nothing") != "nothing"
        left_by[pid, thread] = left
    return counts


def _looks(effects: Path) -> Iterator[list[str]]:
    file = effects.with_name(f"{effects.name}.sessions")
    for line in file.read_text().splitlines() if file.exists() else ():
        yield line.split(" ", 4)
