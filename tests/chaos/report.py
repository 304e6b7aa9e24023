"""What came of a run, in words for a terminal and in Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

from .accounts import ACCOUNTS
from .recovery import PROMISED, Recovery
from .run import Result


def summary(result: Result) -> str:
    """A few lines."""
    history = result.history
    faults = ", ".join(f"{count} {kind}" for kind, count in history.counted().most_common())
    totals = ", ".join(f"{count} {what}" for what, count in result.totals.items())
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in result.outcomes.items())
    lines = [
        f"{history.counted().total()} faults: {faults}",
        f"{totals}; runs: {outcomes}; {result.repeated} repeated executions",
        f"the database was away for {history.downtime():.1f} s; {result.seconds:.0f} s in all",
    ]
    for kind, found in result.recoveries.found.items():
        lines.append(f"{kind}: " + ", ".join(f"{k} {v}" for k, v in _figures(kind, found).items()))
    return "\n".join(lines)


def write(file: Path, results: Sequence[Result], controls: Sequence[Result] = ()) -> None:
    """The report of these runs."""
    parts = [part for result in results for part in _report(result)]
    for control in controls:
        failed = ", ".join(map(str, sorted(control.failed))) or "none"
        parts += [
            f"Without the fence, the limits and the atomicity, seed {control.asked.seed}:"
            f" accounts that fail: {failed}.",
            "",
        ]
    file.write_text("\n".join(parts).rstrip() + "\n")


def _report(result: Result) -> Iterable[str]:
    asked, history = result.asked, result.history
    yield f"## Seed {asked.seed}"
    yield ""
    yield (
        f"{asked.jobs:,} jobs and {asked.workflows:,} workflows in {asked.seconds:g} s,"
        f" {asked.workers} workers"
        f"{', without the fence' if asked.without_fence else ''}"
        f"{', without the limits' if asked.without_limits else ''}"
        f"{', without the atomicity' if asked.without_atomicity else ''}."
        f" CPython {platform.python_version()}, Django {version('django')},"
        f" psycopg {version('psycopg')}, PostgreSQL {result.server},"
        f" {os.cpu_count()} cores ({platform.machine()}). {result.seconds:.0f} s in all."
    )
    yield ""
    yield from _table(("fault", "times"), history.counted().most_common())
    yield f"The database was away for {history.downtime():.1f} s."
    yield ""
    yield from _table(("there were", "number"), result.totals.items())
    yield from _table(("runs by outcome", "number"), result.outcomes.items())
    yield f"Repeated executions: {result.repeated}."
    yield ""
    rows = [
        (kind, *_figures(kind, found).values())
        for kind, found in result.recoveries.found.items()
        if found
    ]
    yield from _table(("seconds until", "count", "median", "max", "promised", "disturbed"), rows)
    failed = result.failed
    accounts = [
        (number, name, "**does not balance**" if number in failed else "balances")
        for number, name in ACCOUNTS.items()
    ]
    yield from _table(("account", "what must hold", ""), accounts)
    for number, problem in result.found:
        yield f"- {number}: {problem}"
    yield ""


def _figures(kind: str, found: Sequence[Recovery]) -> dict[str, object]:
    """Of what nothing else disturbed; how many others there were is told beside it."""
    clear = [one.seconds for one in found if one.clear]
    return {
        "count": len(clear),
        "median": f"{median(clear):.2f}" if clear else "-",
        "max": f"{max(clear):.2f}" if clear else "-",
        "promised": f"{PROMISED[kind]:.1f}",
        "disturbed": len(found) - len(clear),
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""
