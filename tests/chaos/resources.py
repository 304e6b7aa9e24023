"""What a fleet at rest holds: processes, descriptors, connections. It must not grow by work."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.clusters import Cluster

from .accounts import Problem
from .fleet import Tree

THREADS = 2
PROCESSES = 3
"""Of a tree at rest: supervisor, heartbeat, worker."""

FOR_HANDLERS = THREADS + THREADS + 1
"""Connections of a worker process that handlers open when they need one: those of each thread, and
those that async handlers share."""

LEAST, MOST = 2 + 3, 2 + 3 + 1 + FOR_HANDLERS
"""Connections of a tree at rest, as docs/connections.md has it. A process opens one for reports
with the first report."""

BACKENDS = """
SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%'
                                  AND clock_timestamp() - state_change > interval '1 second')
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Held:
    """What the fleet holds at one moment. Descriptors by process id: sockets, and others."""

    descriptors: dict[int, tuple[int, int]]
    shape: dict[str, int]
    supervisors: frozenset[int]
    backends: int
    in_transaction: int
    astray: tuple[str, ...]


def look(cluster: Cluster, trees: Sequence[Tree], directory: Path) -> Held:
    """Count everything, now."""
    descriptors: dict[int, tuple[int, int]] = {}
    shape: dict[str, int] = {}
    for tree in trees:
        processes = tree.processes()
        shape[tree.name] = len(processes)
        for process in processes:
            descriptors[process.pid] = _descriptors(process.pid)
    ((backends, in_transaction),) = cluster.fetch(BACKENDS)
    astray = tuple(text for pid, text in ours(directory).items() if pid not in descriptors)
    supervisors = frozenset(tree.process.pid for tree in trees)
    return Held(descriptors, shape, supervisors, backends, in_transaction, astray)


def ours(directory: Path) -> dict[int, str]:
    """Processes anywhere on the machine that a worker of this run has started: they inherit the
    name of its directory. A zombie has lost it, and is known by its session's processes only."""
    mark = str(directory).encode()
    found: dict[int, str] = {}
    for process in psutil.process_iter(["pid", "ppid", "name", "status"]):
        try:
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                found[process.pid] = str(process.info)
        except OSError:
            continue
    found.pop(os.getpid(), None)
    return found


def zombies(roots: set[int]) -> list[str]:
    """Dead processes of the sessions of these supervisors that nobody has collected."""
    found = []
    for process in psutil.process_iter(["pid", "ppid", "status"]):
        try:
            zombie = process.info["status"] == psutil.STATUS_ZOMBIE
            if zombie and os.getsid(process.pid) in roots:
                found.append(str(process.info))
        except OSError:
            continue
    return found


def growth(before: Held, after: Held) -> Iterator[Problem]:
    """What is wrong with the fleet at rest, and what has grown between two looks with some hundred
    jobs in between. Handlers of a worker may have opened their connections meanwhile; nothing
    else."""
    if before.descriptors.keys() != after.descriptors.keys():
        yield 9, f"processes came or went in peace: {before.shape} and then {after.shape}"
    for pid, (sockets, others) in before.descriptors.items():
        sockets_now, others_now = after.descriptors.get(pid, (0, 0))
        connections = 0 if pid in before.supervisors else FOR_HANDLERS
        if sockets_now - sockets > connections or others_now > others:
            yield (
                9,
                f"process {pid} had {sockets} sockets and {others} other descriptors, and then "
                f"{sockets_now} and {others_now}",
            )
    supervisors = Counter(after.descriptors.get(pid, (0, 0)) for pid in after.supervisors)
    if len(supervisors) > 1:
        yield 9, f"the supervisors' descriptors differ by what they went through: {supervisors}"
    for held in (before, after):
        odd = {tree: count for tree, count in held.shape.items() if count != PROCESSES}
        if odd:
            yield 9, f"a tree at rest has {PROCESSES} processes, and not {odd}"
        trees = len(held.shape)
        if not trees * LEAST <= held.backends <= trees * MOST:
            yield 9, f"{held.backends} connections of {trees} trees at rest"
        if held.in_transaction:
            yield 9, f"{held.in_transaction} connections idle in a transaction"
        if held.astray:
            yield 9, f"processes that belong to no tree: {held.astray[:3]}"


def _descriptors(pid: int) -> tuple[int, int]:
    names = []
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            names.append(os.readlink(path))
    sockets = sum(name.startswith("socket:") for name in names)
    return sockets, len(names) - sockets
