"""``python -m tests.benchmarks [SECTION ...]``; ``--help`` tells the rest."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from .bars import SIZES, Bar, bar_of, measure_bars
from .machine import describe
from .measuring import Figure, progress
from .sections import ALL, OF_THE_ADMIN, SECTIONS, measure


def main() -> int:
    options = _options()
    before = _read(options.compare) if options.compare else {}
    # What stops the benchmark must not leave its workers and its database behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"
    if OF_THE_ADMIN & set(options.sections):
        os.environ["BENCHMARK_ADMIN"] = "1"
    if "DATABASE_URL" not in os.environ:
        from testproject import embedded

        own = os.environ["BENCHMARK_EMBEDDED"] = "bench"
        os.environ["DATABASE_URL"] = embedded.start(embedded.data_directory(own)).get_uri()
    import django

    django.setup()
    from django.db import connection

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    os.environ["BENCHMARK_DATABASE_NAME"] = connection.settings_dict["NAME"]
    machine = describe()
    figures: list[Figure] = []
    try:
        progress.emit(", ".join(f"{what} {value}" for what, value in machine.items()))
        missed = _report(options, before, figures)
    finally:
        if options.json:  # also what was measured before a section failed
            found = {"machine": machine, "figures": [figure.as_json() for figure in figures]}
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        with connection.cursor() as cursor:  # of a process that was killed just now
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        connection.creation.destroy_test_db("", verbosity=0)
    return int(missed)


def _report(options: argparse.Namespace, before: dict[str, float], figures: list[Figure]) -> bool:
    """Measure, print and append the figures; return whether a bar is missed."""
    run, missed = measure_bars if options.bars else measure, False
    for name in progress.sections(options.sections):
        for figure in run(name, options.times, options.scale):
            figures.append(figure)
            bar = bar_of(name, figure)
            if options.bars and bar:
                progress.emit(bar.verdict(figure))
                missed |= bar.is_missed(figure)
            else:
                progress.emit(_line(figure, bar, before.get(figure.name)))
    return missed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measure the queue beside plain psycopg. DATABASE_URL chooses the server; "
        "without it an embedded one is started.",
    )
    parser.add_argument(
        "sections", nargs="*", help=f"of: {', '.join(SECTIONS)}. Default: {', '.join(ALL)}."
    )
    parser.add_argument("--times", type=int, default=3, help="How often each is measured.")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the full size.")
    parser.add_argument(
        "--bars",
        action="store_true",
        help="Measure what has a bar, at small sizes; exit with 1 if one is missed.",
    )
    parser.add_argument("--json", type=Path, help="Write the figures there.")
    parser.add_argument("--compare", type=Path, help="Show the change since these figures.")
    options = parser.parse_args()
    known = list(SIZES if options.bars else SECTIONS)
    unknown = set(options.sections) - set(known)
    if unknown:
        parser.error(
            f"no section is named {', '.join(sorted(unknown))}; known are: {', '.join(known)}"
        )
    options.sections = options.sections or (known if options.bars else ALL)
    if options.times < 1 or options.scale <= 0:
        parser.error("--times must be at least 1 and --scale above 0")
    return options


def _read(path: Path) -> dict[str, float]:
    figures = json.loads(path.read_text())["figures"]
    return {figure["name"]: figure["median"] for figure in figures}


def _line(figure: Figure, bar: Bar | None, before: float | None) -> str:
    text = (
        f"{figure.name}: median {figure.median:,.1f} {figure.unit} "
        f"(min {min(figure.values):,.1f}, max {max(figure.values):,.1f}, n={len(figure.values)})"
    )
    if figure.ratio is not None:
        text += f"; {figure.ratio:.2f} of {figure.raw_name}"
    goal = f"{bar.goal:g} of {figure.raw_name}" if bar else ""
    if promised := "; ".join(filter(None, (figure.bar, goal))):
        text += f"  [bar: {promised}]"
    if before:
        text += f"  {figure.median / before - 1:+.0%} since then"
    return text


if __name__ == "__main__":
    sys.exit(main())
