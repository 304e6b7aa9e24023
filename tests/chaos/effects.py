"""The lines that handlers left: one for each execution, written by nobody else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.clusters import Cluster

EXECUTED = """
SELECT job.id, job.status, job.job_type, job.attempt, run.attempt, run.outcome, worker.name,
    run.error_type, job.workflow_run_id IS NOT NULL
FROM django_jobs_job AS job
LEFT JOIN django_jobs_run AS run ON run.job_id = job.id
LEFT JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
ORDER BY job.id, run.attempt
"""

SERIALIZABLE = "tree-1"
"""Whose transactions are so: there an exactly-once handler runs again within its attempt if its
transaction lost against another one, and is snoozed if it lost ten times."""

REPEATED = {"lost", "released"}
"""Outcomes after which a job may have had its effect, and has it again."""

LOST_CONNECTION = {"OperationalError", "InterfaceError", "django.db.utils.OperationalError"}
LOST_CONNECTION |= {"django.db.utils.InterfaceError"}
SILENT = {f"django_jobs.{name}" for name in ("wait", "sleep", "end", "callback")}
SILENT |= {"chaos.diamond"}
"""Handlers that are the package's, and leave no line: steps that wait, that end a workflow which is
a step, or call a client, and what starts a run."""

CANCELLED = {"chaos.cancelled", "chaos.forced", "chaos.bulk_work"}
EXACTLY_ONCE = {"chaos.inside", "chaos.adds_inside"}
USES_THE_DATABASE = {*EXACTLY_ONCE, "chaos.tenant", "chaos.awaits_tenant", "chaos.bulk_dies"}
USES_THE_DATABASE |= {*SILENT, "chaos.forced"}
USES_THE_DATABASE |= {f"chaos.{name}" for name in ("adds", "undo", "joins", "splits", "rests")}
USES_THE_DATABASE |= {"chaos.files", "chaos.charges"}
"""What these handlers may fail with here, and no other may."""


class Line(NamedTuple):
    """One execution."""

    job: int
    attempt: int
    tree: str
    pid: int
    at: float


def read(file: Path) -> list[Line]:
    """All of them, in order of time."""
    words = (line.split() for line in file.read_text().splitlines())
    return [Line(int(job), int(n), tree, int(pid), float(at)) for job, n, tree, pid, at in words]


def problems(cluster: Cluster, lines: list[Line]) -> Iterator[tuple[int, str]]:
    """Each execution has one run that tells of it, and each repetition its reason."""
    executed: dict[tuple[int, int], list[Line]] = defaultdict(list)
    for line in lines:
        executed[line.job, line.attempt].append(line)
    repeated = explained = 0
    left = dict(executed)
    for job, status, kind, last, attempt, outcome, tree, error, is_step in cluster.fetch(EXECUTED):
        if outcome is None:
            continue  # it has no run at all: another account's
        here = left.pop((job, attempt), [])
        what = f"job {job} ({kind}) attempt {attempt} of {last} on {tree}"
        again = kind in EXACTLY_ONCE and tree == SERIALIZABLE and len({*map(_process, here)}) == 1
        if len(here) > 1 and not again:
            yield 4, f"{what}: ran {len(here)} times"
        if here and here[0].tree != tree:
            yield 6, f"{what}: {outcome}, written by another than {here[0].tree}, who ran it"
        if outcome == "succeeded" and not here and kind not in SILENT:
            yield 4, f"{what}: succeeded and never ran"
        cancelled = outcome == "cancelled" and (is_step or kind in CANCELLED)
        if not (cancelled or _is_possible(kind, attempt, outcome, error)):
            yield 4, f"{what}: {outcome} ({error}), which nothing here does"
        if status == "succeeded" and here and attempt != last:
            repeated += 1
            explained += outcome in {"failed", "snoozed", *REPEATED}
    if left:
        yield 4, f"executions that no run tells of: {len(left)}, such as {list(left)[:3]}"
    if repeated != explained:
        yield 4, f"{repeated} repeated executions, of which {explained} have a reason"


def _is_possible(kind: str, attempt: int, outcome: str, error: str) -> bool:
    if outcome in {"succeeded", *REPEATED}:
        return True
    if kind in {"chaos.rests", *SILENT} and outcome == "snoozed":
        return True
    if kind in USES_THE_DATABASE and outcome == "snoozed":  # for want of a connection, or a race
        return True
    if outcome != "failed":
        return False
    if kind == "django_jobs.wait" and error.endswith("SignalTimeout"):
        return True
    if kind == "django_jobs.callback":  # the client refused it, or was not reached
        return True
    planned = kind == "chaos.stumble" and attempt == 1 and error.endswith("RuntimeError")
    planned |= kind == "chaos.bulk_dies" and error.endswith("Discard")
    planned |= kind == "chaos.fails" and attempt % 2 == 1 and error.endswith("RuntimeError")
    return planned or (kind in USES_THE_DATABASE and error in LOST_CONNECTION)


def _process(line: Line) -> tuple[str, int]:
    return line.tree, line.pid


def count_repeated(lines: list[Line]) -> int:
    """Executions beyond the first of their job."""
    return len(lines) - len({line.job for line in lines})
