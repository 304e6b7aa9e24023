"""Compare what mypy and pyright find in the examples with what these expect."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Place = tuple[str, int]

HERE = Path(__file__).resolve().parent
EXAMPLES = [path for path in sorted(HERE.glob("*.py")) if not path.name.startswith("__")]
ERROR = re.compile(r"^(?:.*/)?(\w+\.py):(\d+): error: ", re.MULTILINE)


def expected() -> set[Place]:
    """The lines that end in ``# E``."""
    return {
        (path.name, number)
        for path in EXAMPLES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("  # E")
    }


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command, *map(str, EXAMPLES)],
        cwd=HERE.parents[1],
        text=True,
        stdout=subprocess.PIPE,
    )
    return done.stdout


def mypy() -> set[Place]:
    return {(name, int(line)) for name, line in ERROR.findall(run("mypy", "--no-pretty"))}


def pyright() -> set[Place]:
    # Of itself it takes the packages of a folder .venv, which may lack the stubs of Django.
    environment = ("--pythonpath", sys.executable)
    found = json.loads(run("basedpyright", "--outputjson", "--level", "error", *environment))
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in found["generalDiagnostics"]
    }


def main() -> int:
    checkers: tuple[Callable[[], set[Place]], ...] = (mypy, pyright)
    there, wrong = expected(), 0
    for checker in checkers:
        found = checker()
        for place in sorted(there ^ found):
            problem = "finds no error" if place in there else "finds an unexpected error"
            print(f"{checker.__name__} {problem} at tests/typing/{place[0]}:{place[1]}")
        wrong += len(there ^ found)
        print(f"{checker.__name__}: {len(there & found)} of {len(there)} errors in the examples")
    return 1 if wrong or not there else 0


raise SystemExit(main())
