"""Run the chaos test; exit code 1 where an account does not balance."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.clusters import PROJECT, Cluster

MORE = "SELECT count(*) FROM django_jobs_job WHERE status NOT IN ('succeeded','dead','cancelled')"
SCHEDULE = """
INSERT INTO django_jobs_schedule (name, job_type, payload, queue, cron, every, timezone, enabled,
    jitter_seconds, dst, overlap, catch_up, catch_up_limit, declared, paused_reason, error, stale,
    created_at)
VALUES ('every second', 'chaos.every_second', '{}', '', '', 1, 'UTC', true, 0, 'once', 'allow',
    'window', 86400, false, '', '', true, now())
"""
TOTALS = """
SELECT (SELECT count(*) FROM django_jobs_job), (SELECT count(*) FROM django_jobs_run),
    (SELECT count(*) FROM django_jobs_worker), (SELECT count(*) FROM django_jobs_tick)
"""
OUTCOMES = "SELECT outcome, count(*) FROM django_jobs_run GROUP BY outcome ORDER BY 2 DESC"


def main() -> int:
    """Faults for a while, then peace, then the accounts."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=1_500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--without-fence", action="store_true", help="the negative control: it must fail"
    )
    parser.add_argument("--peace", type=float, default=45.0, help="seconds to end what is left")
    asked = parser.parse_args()
    print(f"chaos: seed {asked.seed}, {asked.seconds:g} s, {asked.jobs} jobs", flush=True)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        found = run(asked, Path(directory))
    for problem in found:
        print(f"DOES NOT BALANCE: {problem}", flush=True)
    if asked.without_fence:
        print("the negative control " + ("failed, as it must" if found else "found NOTHING"))
        return 0 if found else 1
    print("all accounts balance" if not found else f"{len(found)} accounts do not balance")
    return 1 if found else 0


def run(asked: argparse.Namespace, directory: Path) -> list[str]:
    """One run; the accounts that do not balance."""
    from .accounts import problems
    from .faults import Faults
    from .fleet import Tree

    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:7.2f} {text}", flush=True)

    with Cluster("tests.chaos.settings") as cluster:
        environment = {
            **cluster.environment,
            "TEST_DATABASE_NAME": "postgres",
            "CHAOS_EFFECTS": str(directory / "effects"),
        }
        if asked.without_fence:
            environment["CHAOS_WITHOUT_FENCE"] = "1"
        cluster.execute("DELETE FROM django_jobs_schedule")  # the demo declares some
        cluster.execute(SCHEDULE)
        numbers = [str(asked.jobs), str(asked.seed), str(asked.seconds)]
        enqueuer = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.enqueuer", *numbers, str(directory / "keys.json")],
            cwd=PROJECT,
            env=environment,
        )
        trees = [Tree(number, directory, environment) for number in range(asked.workers)]
        try:
            faults = Faults(trees, cluster, asked.seed, say)
            faults.go_on_for(asked.seconds)
            say("peace")
            enqueuer.wait(60)
            _until_all_have_ended(cluster, asked.peace)
            say("ended")
        finally:
            enqueuer.kill()
            enqueuer.wait()
            forced = [tree.log.name for tree in trees if not tree.end(20)]
        found = list(problems(cluster, directory, faults.downtime))
        if forced:
            found.append(f"trees that did not drain: {forced}")
        jobs, runs, workers, ticks = cluster.fetch(TOTALS)[0]
        outcomes = Counter(dict(cluster.fetch(OUTCOMES)))
        say(f"{jobs} jobs, {runs} runs, {workers} boots, {ticks} due times; {dict(outcomes)}")
        say(f"the database was away for {faults.downtime:.1f} s")
        if found:
            for log in sorted(directory.glob("*.log")):
                target = Path(tempfile.gettempdir()) / f"chaos-{asked.seed}-{log.name}"
                target.write_bytes(log.read_bytes())
        return found


def _until_all_have_ended(cluster: Cluster, seconds: float) -> None:
    """The schedule stops, and what is left ends."""
    cluster.execute("UPDATE django_jobs_schedule SET enabled = false")
    deadline = time.monotonic() + seconds
    while cluster.fetch(MORE)[0][0] and time.monotonic() < deadline:
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
