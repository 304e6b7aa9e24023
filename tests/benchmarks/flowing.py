"""What workflows cost: the drain of steps that open each other, and of the same jobs without."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from django_jobs.domain.workflows import When
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows.starting import NewRun, start
from tests.app.jobs import noop

from .database import NOOP, drained_per_second, empty, execute, fetch, settle_down, until
from .draining import drain
from .latency import pickups
from .measuring import Figure, percentile, repeat
from .workers import run_worker, running_worker

# Of step n the run is n / size, and the place in it n % size.
FILL_RUNS = """
INSERT INTO django_jobs_workflowrun (id, name, status, payload, ends_left, started_at)
SELECT n, 'benchmark', 'running', '{}', 1, clock_timestamp()
FROM generate_series(0, %(runs)s - 1) AS n
"""
FILL_STEPS = """
INSERT INTO django_jobs_job_live (id, queue, job_type, payload, payload_version, status, priority,
    rank, available_at, max_attempts, max_crashes, headers, created_at, workflow_run_id, step,
    prerequisites)
SELECT n + 1, 'default', %(job_type)s, '{}', 1,
    CASE WHEN before > 0 THEN 'waiting' ELSE 'ready' END, 0,
    extract(epoch FROM now()) + n * 1e-6, now(), 5, 3, '{}', now(), n / %(size)s,
    (n %% %(size)s)::text, nullif(before, 0)
FROM generate_series(0, %(runs)s * %(size)s - 1) AS n, LATERAL (
    SELECT (%(prerequisites)s::integer[])[n %% %(size)s + 1] AS before) AS one
"""
FILL_DEPENDENCIES = """
INSERT INTO django_jobs_dependency (workflow_run_id, parent_id, child_id, "when")
SELECT run, run * %(size)s + parent + 1, run * %(size)s + child + 1, 'succeeded'
FROM generate_series(0, %(runs)s - 1) AS run,
    unnest(%(parents)s::integer[], %(children)s::integer[]) AS edge (parent, child)
"""
FLOWS = ("django_jobs_workflowrun", "django_jobs_dependency")

STEP_SECONDS = """
SELECT extract(epoch FROM max(started_at) - min(started_at))::float8 / (count(*) - 1)
FROM django_jobs_run
"""

Edges = list[tuple[int, int]]
"""Of a graph: which step comes before which, by their places."""

CHAIN: Edges = [(0, 1), (1, 2)]
DIAMOND: Edges = [(0, 1), (0, 2), (1, 3), (2, 3)]


def empty_all() -> None:
    """No jobs and no runs of workflows."""
    empty()
    execute(f"TRUNCATE {', '.join(FLOWS)}")


def drain_steps(count: int, edges: Edges) -> float:
    """No-op steps a second, by one process: about so many, in runs of a graph with these edges."""
    parents, children = zip(*edges, strict=True)
    size, before = max(children) + 1, Counter(children)
    runs = max(count // size, 1)
    numbers = {
        "job_type": NOOP,
        "runs": runs,
        "size": size,
        "prerequisites": [before[place] for place in range(size)],
        "parents": list(parents),
        "children": list(children),
    }
    empty_all()
    for statement in (FILL_RUNS, FILL_STEPS, FILL_DEPENDENCIES):
        execute(statement, numbers)
    settle_down("django_jobs_job", *FLOWS)
    run_worker()
    left = fetch("SELECT count(*) FROM django_jobs_workflowrun WHERE status <> 'succeeded'")
    if left != [(0,)]:
        raise RuntimeError(f"{left[0][0]} runs have not succeeded")
    return drained_per_second(runs * size)


def start_run(count: int) -> float:
    """Seconds in which a run of so many steps is started: a tree in which each step opens two."""
    empty_all()
    begun = time.monotonic()
    start(NewRun(name="benchmark"), tree(count))
    return time.monotonic() - begun


def tree(count: int, children: int = 2) -> list[NewStep]:
    """Steps of which each is followed by so many, until there are ``count``."""
    new = noop.request()
    return [
        NewStep(
            name=str(place),
            new=new,
            payload="{}",
            after={(place - 1) // children: When.SUCCEEDED} if place else {},
        )
        for place in range(count)
    ]


def pass_steps(count: int) -> float:
    """Milliseconds from the start of a step to that of the next one, in a chain of so many no-op
    steps that a worker runs while nothing else is there."""
    empty_all()
    with running_worker("--poll-seconds", "5"):
        start(NewRun(name="benchmark"), tree(count, children=1))
        until(lambda: fetch("SELECT count(*) FROM django_jobs_run") == [(count,)])
    return float(fetch(STEP_SECONDS)[0][0]) * 1_000


def workflows(times: int, scale: float) -> list[Figure]:
    """Drains of steps, the start of a large run, and the pace of a chain."""
    count = int(40_000 * scale)
    kinds: dict[str, Edges] = {
        "fan-in into one": [(place, count - 1) for place in range(count - 1)],
        "chains of three": CHAIN,
        "diamonds": DIAMOND,
    }
    measures: list[Callable[[], float]] = [
        partial(drain_steps, count, edges) for edges in kinds.values()
    ]
    plain, *others = repeat(times, lambda: drain(count), *measures)
    figures = [
        Figure(f"drain of {count:,}, {name}", "jobs/s", values, plain, "no workflows")
        for name, values in zip(kinds, others, strict=True)
    ]
    many, chain = int(10_000 * scale), max(int(100 * scale), 20)
    started, passed, picked = repeat(
        times,
        lambda: start_run(many),
        lambda: pass_steps(chain),
        lambda: percentile(pickups(chain, noop.enqueue)[0], 0.5) * 1_000,
    )
    empty_all()
    return [
        *figures,
        Figure(f"start of a run of {many:,} steps", "s", started, better="less", bar="2 s"),
        Figure(f"a step of a chain of {chain}", "ms", passed, picked, "the pickup", "less"),
    ]
