"""Jobs with files."""

from __future__ import annotations

from typing import Any

from django_jobs import Stored, job

seen: list[tuple[str, int | None, bytes]] = []


@job
def count_bytes(report: Any, fails: bool = False) -> None:
    if isinstance(report, Stored):
        with report.open() as file:
            seen.append((report.name, report.size, file.read()))
    if fails:
        raise ValueError(report)
