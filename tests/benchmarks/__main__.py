"""``python -m tests.benchmarks [SECTION ...]``; ``--help`` tells the rest."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from .machine import describe
from .measuring import Figure, progress
from .sections import ALL, OF_THE_ADMIN, SECTIONS, load


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
        for name in progress.sections(options.sections or ALL):
            for figure in load(name)(options.times, options.scale):
                figures.append(figure)
                progress.emit(_line(figure, before.get(figure.name)))
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
    return 0


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
    parser.add_argument("--json", type=Path, help="Write the figures there.")
    parser.add_argument("--compare", type=Path, help="Show the change since these figures.")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(
            f"no section is named {', '.join(sorted(unknown))}; known are: {', '.join(SECTIONS)}"
        )
    if options.times < 1 or options.scale <= 0:
        parser.error("--times must be at least 1 and --scale above 0")
    return options


def _read(path: Path) -> dict[str, float]:
    figures = json.loads(path.read_text())["figures"]
    return {figure["name"]: figure["median"] for figure in figures}


def _line(figure: Figure, before: float | None) -> str:
    text = (
        f"{figure.name}: median {figure.median:,.1f} {figure.unit} "
        f"(min {min(figure.values):,.1f}, max {max(figure.values):,.1f}, n={len(figure.values)})"
    )
    if figure.ratio is not None:
        text += f"; {figure.ratio:.2f} of {figure.raw_name}"
    if figure.bar:
        text += f"  [bar: {figure.bar}]"
    if before:
        text += f"  {figure.median / before - 1:+.0%} since then"
    return text


if __name__ == "__main__":
    sys.exit(main())
