"""Run a test many times under load; exit code 1 where it failed once."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests import first_failure
from tests.again.busy import busy_processes
from tests.again.repetition import is_named

BATCH = 10
"""Repetitions in one process when the test runs alone. The first of them finds nothing cached; it
takes 4 s to start pytest, Django and the database."""


@dataclass
class Mode:
    """The results of the runs in one mode."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    failed_seeds: list[int] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Neighbours that failed, and processes that ended otherwise."""

    @property
    def has_failed(self) -> bool:
        return bool(self.outcomes["failed"] or self.others)

    def __str__(self) -> str:
        outcomes = [f"{self.outcomes[name]} {name}" for name in ("passed", "failed")]
        if skipped := self.outcomes["skipped"]:
            outcomes.append(f"{skipped} skipped")
        parts = [f"{self.name}: {', '.join(outcomes)}"]
        if self.seconds:
            median, slowest = statistics.median(self.seconds), max(self.seconds)
            parts.append(f"median {median:.2f} s, slowest {slowest:.2f} s")
        if self.failed_seeds:
            parts.append(f"failed with the seeds {', '.join(map(str, self.failed_seeds))}")
        return "; ".join([*parts, *self.others])


def main() -> int:
    """Alone, then among its neighbours."""
    # SIGTERM too ends the block that stops the busy processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m tests.again", description=__doc__)
    parser.add_argument("test", metavar="FILE::TEST")
    parser.add_argument("--times", type=int, default=50, help="runs in each of the two modes")
    parser.add_argument("--load", type=int, default=4, help="busy processes at the same time")
    parser.add_argument("--cpus", type=int, help="run all of it on this number of CPUs")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    if "::" not in options.test:
        parser.error("name one test: FILE::TEST")
    if options.times < 1:
        parser.error("--times is at least 1")
    if options.cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cpus])
    seeds = range(options.seed, options.seed + options.times)
    with tempfile.TemporaryDirectory(prefix="again-") as directory:
        runs = Runs(options.test, Path(directory))
        with busy_processes(options.load):
            modes = [runs.alone(options.times), runs.among_neighbours(seeds)]
            averages = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        print(runs.first_failure(), end="")
    for mode in modes:
        print(mode)
    print(
        f"load: {options.load} busy processes on {len(os.sched_getaffinity(0))} CPUs;"
        f" in the last 1, 5 and 15 minutes: {averages}"
    )
    print(f"seeds of the neighbours' order: {seeds[0]} to {seeds[-1]}")
    return int(any(mode.has_failed for mode in modes))


class Runs:
    """Runs of pytest, one after the other."""

    def __init__(self, test: str, directory: Path) -> None:
        self._test = test
        self._file, _, self._name = test.partition("::")
        self._failure = directory / "first-failure"
        self._results = directory / "results"
        self._environment = {**os.environ, first_failure.FILE: str(self._failure)}

    def alone(self, times: int) -> Mode:
        mode = Mode("alone")
        for done in range(0, times, BATCH):
            number = min(BATCH, times - done)
            self._run(mode, f"{number} times", number, self._test, f"--repeat={number}")
            print(f"{done + number} of {times} {mode}", flush=True)
        return mode

    def among_neighbours(self, seeds: range) -> Mode:
        """The tests after it in the order are left out: they cannot change its result."""
        mode = Mode("among its neighbours")
        for done, seed in enumerate(seeds, start=1):
            order = ("-p", "randomly", f"--randomly-seed={seed}", f"--last={self._name}")
            failures = mode.outcomes["failed"]
            self._run(mode, f"seed {seed}", 1, self._file, *order)
            if mode.outcomes["failed"] > failures:
                mode.failed_seeds.append(seed)
            if done % BATCH == 0 or done == len(seeds):
                print(f"{done} of {len(seeds)} {mode}", flush=True)
        return mode

    def first_failure(self) -> str:
        return self._failure.read_text() if self._failure.exists() else ""

    def _run(self, mode: Mode, what: str, times: int, *arguments: str) -> None:
        self._results.unlink(missing_ok=True)
        plugins = ("no:randomly", "tests.first_failure", "tests.again.repetition")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-n", "0", "--maxfail=0"),
                *(f"-p{plugin}" for plugin in plugins),
                *(f"--results={self._results}", *arguments),
            ],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        ran = 0
        for nodeid, outcome, seconds in self._outcomes():
            if is_named(nodeid, self._name):
                ran += 1
                mode.outcomes[outcome] += 1
                mode.seconds.append(seconds)
            elif outcome == "failed":
                mode.others.append(f"{nodeid} failed with {what}")
        # A test that ends the process leaves the rest without a result, also by os._exit(0).
        if ran < times or done.returncode not in (0, 1):
            mode.others.append(f"pytest ended with {done.returncode}, {what}")
            if not self._failure.exists():
                self._failure.write_text(done.stdout[-10_000:])

    def _outcomes(self) -> Iterator[tuple[str, str, float]]:
        if self._results.exists():
            for line in self._results.read_text().splitlines():
                fields = json.loads(line)
                yield fields["nodeid"], fields["outcome"], fields["seconds"]


if __name__ == "__main__":
    sys.exit(main())
