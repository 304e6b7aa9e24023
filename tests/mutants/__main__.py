"""Plant small faults in the package, one at a time, and see whether the tests find them.

Each fault is planted in a copy of the tree. A fault counts as found if a test fails with it twice
and passes without it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from tests.clusters import PROJECT, Cluster

from .faults import choose, faults_in
from .stages import ROOMS, stages
from .trying import Copy, found_by


def main() -> int:
    """Exit code 1 if a fault survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    parser.add_argument("--only", type=int, action="append", help="the fault with this number")
    parser.add_argument("--stages", type=int, default=3, help="the last stage")
    parser.add_argument("--tests", help="arguments for pytest, instead of the stages")
    parser.add_argument("--keep", type=Path, help="add the results to this file, and skip its own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    paths = [path for room in ROOMS for path in (PROJECT / "django_jobs" / room).rglob("*.py")]
    sources = {path.relative_to(PROJECT).as_posix(): path.read_bytes() for path in paths}
    faults = [fault for one, source in sources.items() for fault in faults_in(one, source)]
    chosen = dict(enumerate(choose(faults, options.seed, options.count), start=1))
    chosen = {number: chosen[number] for number in options.only or chosen}
    lines = {number: fault.line(sources[fault.module]) for number, fault in chosen.items()}
    if options.list:
        for number, fault in chosen.items():
            print(f"\n# {number}, {fault.kind}\n{fault.diff(sources[fault.module])}")
        return 0
    kept = options.keep.read_text().splitlines() if options.keep and options.keep.exists() else []
    known = {result["fault"]: result for result in map(json.loads, kept)}
    tests = {
        path.relative_to(PROJECT).as_posix() for path in (PROJECT / "tests").rglob("test_*.py")
    }
    with Cluster() as cluster, tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Copy(Path(directory), cluster)
        for number, fault in chosen.items():
            if lines[number] not in known:
                todo = [one for one in stages(fault.module, tests) if one[0] <= options.stages]
                todo = [(3, options.tests.split())] if options.tests else todo
                stage, how = found_by(copy, fault, todo)
                result = {"fault": lines[number], "stage": stage, "how": how}
                known[lines[number]] = result
                if options.keep:
                    with options.keep.open("a") as file:
                        file.write(json.dumps({"number": number, **result}) + "\n")
            result = known[lines[number]]
            verdict = f"stage {result['stage']}" if result["stage"] else "SURVIVED"
            print(f"{number:3} {verdict:9}{lines[number]}\n    {result['how']}", flush=True)
    survived = sum(not known[line]["stage"] for line in lines.values())
    print(f"{len(lines) - survived} of {len(lines)} faults are found")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
