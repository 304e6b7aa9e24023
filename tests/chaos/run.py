"""One run: a cluster and a fleet, a storm, peace, the end, the accounts."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.clusters import Cluster
from tests.receivers import webhook

from . import (
    accounts,
    afterwards,
    alerts,
    cancels,
    deploy,
    edits,
    effects,
    gates,
    neighbour,
    operations,
    outside,
    partitions,
    pools,
    recovery,
    roles,
    sessions,
    worker_logs,
    workflows,
)
from .accounts import Problem
from .faults import Faults
from .ground import Ground
from .history import History
from .outside import Client
from .recovery import Recoveries

TOTALS = """
SELECT (SELECT count(*) FROM django_jobs_job), (SELECT count(*) FROM django_jobs_run),
    (SELECT count(*) FROM django_jobs_worker), (SELECT count(*) FROM django_jobs_tick)
"""
OUTCOMES = "SELECT outcome, count(*) FROM django_jobs_run GROUP BY outcome ORDER BY 2 DESC"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to run."""

    seconds: float = 60.0
    jobs: int = 1_500
    workflows: int = 100
    operations: int = 24
    workers: int = 4
    seed: int = 1
    without_fence: bool = False
    without_limits: bool = False
    without_atomicity: bool = False
    patience: float = 120.0
    keep: Path | None = None

    @property
    def is_control(self) -> bool:
        """Whether an account has to fail."""
        return self.without_fence or self.without_limits or self.without_atomicity


@dataclass(kw_only=True)
class Result:
    """What came of it."""

    asked: Asked
    seconds: float = 0.0
    found: list[Problem] = field(default_factory=list)
    history: History = field(default_factory=History)
    totals: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    recoveries: Recoveries = field(default_factory=Recoveries)
    server: str = ""

    @property
    def failed(self) -> set[int]:
        """The numbers of the accounts that do not balance."""
        return {number for number, _ in self.found}


def run(asked: Asked, say: Callable[[str], None]) -> Result:
    """Storm, peace, accounts. Leaves nothing behind, also where it is interrupted."""
    begun = time.monotonic()
    result = Result(asked=asked)
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.getsignal(number))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        cluster = Cluster("tests.chaos.settings")
        stack.push(cluster)  # before it is entered: an interrupt may come while it starts
        cluster.__enter__()
        client = Client()
        stack.enter_context(webhook(client))
        ground = Ground(
            cluster,
            directory,
            without_fence=asked.without_fence,
            without_limits=asked.without_limits,
            without_atomicity=asked.without_atomicity,
            patience=asked.patience,
            client=client,
            say=say,
        )
        stack.callback(ground.clear)
        if asked.keep is not None:
            target = asked.keep / f"seed-{asked.seed}"
            stack.callback(shutil.copytree, directory, target, dirs_exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):  # a second one must not stop the cleaning
            stack.callback(signal.signal, number, signal.SIG_IGN)
        _go(ground, asked, result)
    result.found.sort()
    result.seconds = time.monotonic() - begun
    return result


def _go(ground: Ground, asked: Asked, result: Result) -> None:
    # The server is killed, the machine is not; and the disk of a shared one may stall.
    ground.cluster.execute("ALTER SYSTEM SET fsync = off")
    ground.cluster.execute("SELECT pg_reload_conf()")
    roles.make(ground.cluster)
    partitions.make(ground.cluster)
    gates.make(ground.cluster)
    ground.cluster.execute(alerts.MAKE)
    operations.make(ground.cluster)
    ground.start_dropper(asked.seed)
    ground.ask("storm", jobs=asked.jobs, seed=asked.seed, seconds=asked.seconds)
    ground.start_operator(asked.workflows, asked.operations, asked.seconds, asked.seed)
    ground.start_trees(asked.workers)
    ground.start_guests(asked.seconds, asked.seed)
    ground.wait_for_begin()
    result.history = ground.history
    faults = Faults(ground, asked.seed)
    faults.go_on_for(asked.seconds)
    ground.say("peace")
    ground.roll_out()
    ground.end_dropper()
    next_due = afterwards.stop_schedule(ground)
    result.found += afterwards.come_to_rest(ground)
    result.found += afterwards.alerts_are_sent(ground)
    ground.client.refuses = False
    ground.end_guests()
    faults.make_one_late()
    if not asked.is_control:
        result.found += afterwards.rest(ground)
        result.found += pools.problems(ground.directory)
        afterwards.drill(ground)
    result.found += afterwards.end(ground)
    _account(ground, result, next_due)


def _account(ground: Ground, result: Result, next_due: object) -> None:
    cluster, directory = ground.cluster, ground.directory
    lines = effects.read(ground.effects)
    result.found += outside.lost_files(cluster, ground.files)
    partitions.look_back(cluster)
    result.found += outside.problems(cluster, ground.client)
    result.found += accounts.problems(cluster, directory, next_due)
    result.found += effects.problems(cluster, lines)
    result.found += worker_logs.problems(directory.glob("worker-*.log"))
    result.found += sessions.problems(ground.effects)
    result.found += neighbour.problems(cluster, directory)
    result.found += roles.problems(cluster, directory, ground.history)
    result.found += cancels.problems(cluster, directory, lines, ground.history)
    result.found += partitions.problems(cluster, directory)
    result.found += gates.problems(cluster)
    result.found += alerts.problems(cluster, ground.effects)
    result.found += deploy.problems(cluster, ground.deployed_at)
    result.found += workflows.problems(cluster, directory)
    result.found += operations.problems(cluster, directory)
    result.recoveries = recovery.measure(cluster, result.history, lines)
    result.found += result.recoveries.problems()
    names = ("jobs", "runs", "boots of workers", "due times")
    result.totals = dict(zip(names, cluster.fetch(TOTALS)[0], strict=True))
    result.totals |= sessions.counted(ground.effects)
    result.totals |= cancels.counted(directory, lines)
    result.totals["processes of pools"] = len(pools.begun(directory))
    result.totals |= neighbour.counted(directory)
    result.totals |= partitions.counted(cluster, directory)
    result.totals |= gates.counted(cluster)
    result.totals["passed by"] = deploy.passed_by(cluster, ground.deployed_at)
    result.totals |= workflows.counted(cluster, directory)
    result.totals |= operations.counted(cluster)
    result.totals |= outside.counted(cluster, ground.client, ground.files)
    result.totals |= alerts.counted(cluster, ground.effects)
    result.totals["rules of the edited schedule"] = cluster.fetch(edits.COUNTED)[0][0]
    result.outcomes = dict(cluster.fetch(OUTCOMES))
    result.repeated = effects.count_repeated(lines)
    result.server = cluster.fetch("SHOW server_version")[0][0]
