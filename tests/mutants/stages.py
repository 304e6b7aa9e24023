"""Which tests are to find a fault, the likeliest and fastest first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

ROOMS = {
    "domain": (("domain", "lifecycle", "maintenance"), ("worker", "admin", "management", "why")),
    "lifecycle": (
        ("lifecycle", "maintenance", "api", "why"),
        ("worker", "admin", "management", "metrics", "backend", "contrib", "testing", "faults"),
    ),
    "worker": (("worker",), ("management", "backend", "contrib", "testing", "faults")),
    "api": (
        ("api", "backend", "checks"),
        ("lifecycle", "maintenance", "contrib", "worker", "admin", "management"),
    ),
    "admin": (("admin",), ("documents", "browser", "testproject", "test_routers.py")),
}
"""The rooms that get faults; for each, the tests that are near, and those that are far."""

QUICK = ("-m", "not slow and not processes")
LONG = ("-m", "slow or processes")
SECONDS = {1: 300, 2: 1_200, 3: 3_600}
"""After which a run of a stage hangs. That is a fault found, if the run ends without the fault."""


def own_tests(module: str, tests: Collection[str]) -> list[str]:
    """The test files with the module's name, or the beginning of its name, or of its folder."""
    _, *folders, stem = module.removesuffix(".py").split("/")
    room, folder = f"tests/{folders[0]}/", f"tests/{'/'.join(folders)}/"
    while stem:
        name = re.compile(rf"{room}(?:.+/)?test_{stem}(?:_\w+)?\.py")
        if same := sorted(test for test in tests if name.fullmatch(test)):
            return same
        stem = stem.rpartition("_")[0]
    return sorted(test for test in tests if test.startswith(folder)) if folder != room else []


def stages(module: str, tests: Collection[str]) -> Iterator[tuple[int, list[str]]]:
    """Numbers of stages, and their arguments for pytest."""
    near, far = ([f"tests/{name}" for name in names] for names in ROOMS[module.split("/")[1]])
    if own := own_tests(module, tests):
        yield 1, [*own, "-n", "0"]
    yield 2, [*near, "-n", "2", *QUICK]
    yield 3, [*near, "-n", "2", *LONG]
    yield 3, [*far, "-n", "2"]
