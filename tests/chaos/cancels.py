"""What became of jobs that were cancelled, or stopped by force."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.clusters import Cluster

from .effects import Line
from .history import History

NOTICED = 0.1
"""Seconds within which a worker knows of the cancel of what it holds (docs/lifecycle.md)."""

MACHINE = 0.5
"""More, between the worker's last look and the line that the handler writes."""

ENDS = "SELECT id, status FROM django_jobs_job WHERE job_type = %s"
BY_FORCE = 25
NUMBERS = {"cancelled": 16, "forced": BY_FORCE}
"""The account of each manner."""


def asked(directory: Path, manner: str) -> dict[int, tuple[bool, float]]:
    """The answer for each job, and when it came."""
    written = json.loads((directory / "keys-storm.json").read_text())
    return {job: (answer, at) for job, answer, at in written[manner]}


def problems(
    cluster: Cluster, directory: Path, lines: Sequence[Line], history: History
) -> Iterator[tuple[int, str]]:
    """None begins after ``cancel()`` has said True, and the answer is what became of it."""
    for manner, number in NUMBERS.items():
        ends = dict(cluster.fetch(ENDS, [f"chaos.{manner}"]))
        for problem in _problems(asked(directory, manner), ends, lines, history):
            yield number, problem
        if number == BY_FORCE:
            alone = [job for job, end in ends.items() if end == "succeeded" and job % 4]
            if alone:
                yield number, f"succeeded, and would have run for ever: {alone[:3]}"


def _problems(
    cancels: dict[int, tuple[bool, float]],
    ends: dict[int, str],
    lines: Sequence[Line],
    history: History,
) -> Iterator[str]:
    begun: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        begun[line.job].append(line)
    late = [
        line
        for job, (answer, at) in cancels.items()
        for line in begun[job]
        if answer
        and line.at > at + NOTICED + MACHINE
        # A process that stood still between its look and the handler's line is late in both.
        and not history.disturbed({line.tree}, at, line.at)
    ]
    if late:
        yield f"began after cancel() had said True: {len(late)}, such as {late[:3]}"
    never = [
        job for job, (answer, _) in cancels.items()
        if answer and not begun[job] and ends[job] != "cancelled"
    ]  # fmt: skip
    if never:
        yield f"cancelled before they began and not so in the end: {never[:3]}"
    refused = [
        job for job, (answer, _) in cancels.items() if not answer and ends[job] == "cancelled"
    ]
    if refused:
        yield f"cancelled although cancel() had said False: {refused[:3]}"
    other = {job: end for job, end in ends.items() if end not in ("succeeded", "cancelled")}
    if other:
        yield f"neither done nor cancelled: {len(other)}, such as {list(other.items())[:3]}"


def counted(directory: Path, lines: Sequence[Line]) -> Counter[str]:
    """How they stood when they were cancelled."""
    began = {line.job for line in lines}
    counts: Counter[str] = Counter()
    for manner in NUMBERS:
        done = "stopped by force" if manner == "forced" else manner
        for job, (answer, _) in asked(directory, manner).items():
            ran = f"{done} while they ran" if job in began else f"{done} before they began"
            counts[ran if answer else f"ended before they were {done}"] += 1
    return counts
