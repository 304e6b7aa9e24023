"""Jobs with files."""

from __future__ import annotations

from typing import Any

from django_jobs import Stored, current_run, job

seen: list[tuple[str, int | None, bytes]] = []


@job
def count_bytes(report: Any, fails: bool = False) -> None:
    if isinstance(report, Stored):
        with report.open() as file:
            seen.append((report.name, report.size, file.read()))
    if fails:
        raise ValueError(report)


@job
def shout(text: Any, times: int = 1) -> Any:
    content = text.read().decode() if isinstance(text, Stored) else text
    if times == 1:
        return {"loud": Stored(content.upper().encode(), "loud.txt"), "given": text}
    return content.upper() * times


@job
async def shout_async(text: Any) -> Any:
    if isinstance(text, Stored):
        return text.read().decode().upper()
    return [Stored(text.upper().encode(), "loud.txt")]


@job
def read_loud(given: Any) -> bytes | str:
    loud = given if isinstance(given, str) else given["loud"].read().decode()
    return f"{len(loud)} {loud[:5]}"


@job(max_attempts=9)
def remember(rows: int) -> Any:
    run = current_run()
    assert run is not None
    saved = run.saved_checkpoint
    if run.attempt <= 2:
        file = Stored(b"part", "part.csv")
        run.checkpoint({"rows": [run.attempt] * rows} if rows else {"file": file})
        raise ValueError(run.attempt)
    return sum(saved["rows"]) if rows else saved["file"].read().decode()
