"""Run the soak; exit code 1 where something grew, or a worker ended."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.clusters import PROJECT, Cluster
from tests.patience import PATIENCE

from .sampling import Sample, sample
from .trees import Tree
from .verdict import compare, markdown

HIGHEST = "SELECT coalesce(max(id), 0) FROM django_jobs_run"


def main() -> int:
    """Work for so long, look meanwhile, compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=500.0, help="jobs a second")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    parser.add_argument("--report", type=Path, help="write the table there")
    asked = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.soak.settings"
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        samples, problems, attempts = run(asked, Path(directory))
    lines = compare(samples)
    title = (
        f"Soak: {asked.minutes:g} minutes, {asked.rate:g} jobs a second,"
        f" {asked.workers} workers; {attempts:,} attempts, {len(samples)} looks"
    )
    text = markdown(title, lines)
    print(text)
    problems += [f"{line.name} grew" for line in lines if not line.is_kept]
    for problem in problems:
        print(f"NOT FLAT: {problem}")
    if asked.report:
        asked.report.write_text(text + "".join(f"\n- {problem}" for problem in problems))
    return 1 if problems else 0


def run(asked: argparse.Namespace, directory: Path) -> tuple[list[Sample], list[str], int]:
    """The samples, what went wrong, and how many attempts there were."""
    seconds = asked.minutes * 60
    samples: list[Sample] = []
    with Cluster("tests.soak.settings") as cluster:
        # Its own disk may stall for seconds; durability is not what is measured.
        cluster.execute("ALTER SYSTEM SET synchronous_commit = off")
        cluster.execute("SELECT pg_reload_conf()")
        # Those of the demo. The migration has declared the soak's own.
        cluster.execute("DELETE FROM django_jobs_schedule WHERE name NOT LIKE 'soak:%'")
        environment = {**cluster.environment, "TEST_DATABASE_NAME": "postgres"}
        trees = [Tree(number, directory, environment) for number in range(asked.workers)]
        enqueuer = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.enqueuer", str(asked.rate), str(seconds)],
            cwd=PROJECT,
            env=environment,
        )
        begun = time.monotonic()
        try:
            while (passed := time.monotonic() - begun) < seconds:
                samples.append(sample(cluster, trees))
                if int(passed / 60) > int((passed - asked.every) / 60) or len(samples) == 1:
                    print(f"{passed / 60:6.1f} min {_short(samples[-1])}", flush=True)
                if ended := [tree.log for tree in trees if tree.has_ended()]:
                    return samples, [f"a worker ended: {ended[0].read_text()}"], 0
                time.sleep(max(0.0, begun + len(samples) * asked.every - time.monotonic()))
            problems = [] if enqueuer.wait(PATIENCE) == 0 else ["the enqueuer failed"]
        finally:
            enqueuer.kill()
            enqueuer.wait()
            forced = [tree.log.name for tree in trees if not tree.drain()]
        attempts = int(cluster.fetch(HIGHEST)[0][0])
        if attempts < asked.rate * seconds / 2:
            problems.append(f"only {attempts} attempts")
        if forced:
            problems.append(f"did not drain: {forced}")
        for tree in trees:
            if "Traceback (most recent call last)" in tree.log.read_text():
                problems.append(f"a traceback in {tree.log.name}: {tree.log.read_text()[-2000:]}")
        return samples, problems, attempts


def _short(one: Sample) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in one.items())


if __name__ == "__main__":
    sys.exit(main())
