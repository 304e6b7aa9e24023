"""Runs tests with the clocks of Python and PostgreSQL moved.

``python -m tests.moved_clock 2028-02-29T23:50 tests/metrics`` begins at this time in UTC.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def environment(begin: datetime, directory: Path) -> dict[str, str]:
    """Of processes for which it is ``begin``. The library that moves their clock is built there."""
    library = directory / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    directory.chmod(0o755)  # the server that root starts runs as another user
    offset = round((begin - datetime.now(UTC)).total_seconds())
    offset += int(os.environ.get("CLOCK_OFFSET", "0"))  # of this process
    moved = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
    kept = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    return {**kept, **moved, "TOX_ENV_NAME": "moved-clock"}  # a server that has no other clock


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.moved_clock", description=__doc__)
    parser.add_argument("begin", type=datetime.fromisoformat)
    parser.add_argument("pytest", nargs=argparse.REMAINDER, help="arguments of pytest")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        moved = environment(given.begin.replace(tzinfo=UTC), Path(directory))
        command = [sys.executable, "-m", "pytest", *given.pytest]
        return subprocess.run(command, env=moved, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
