"""Where a run takes place: a cluster, a directory, a fleet, and somebody who asks for jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.clusters import PROJECT, Cluster

from . import deploy, effects, neighbour, plan, resources, roles
from .fleet import Tree
from .history import Fault, History
from .outside import Client

LIVE = """
SELECT count(*), count(*) FILTER (WHERE status = 'ready'),
    count(*) FILTER (WHERE status = 'waiting' AND awaits IS NULL) FROM django_jobs_job
WHERE status NOT IN ('succeeded', 'dead', 'cancelled')
"""

UNFINISHED = """
SELECT count(*), coalesce(sum(done + "left" + succeeded + failed), 0) FROM django_jobs_bulkoperation
WHERE finished_at IS NULL
"""

BEGUN = """
SELECT (SELECT count(*) FROM django_jobs_worker WHERE name LIKE 'tree-%%') >= %s
   AND EXISTS (SELECT 1 FROM django_jobs_schedule WHERE name = 'every second')
"""


class Ground:
    """Held by a run from its begin to its end. ``patience`` is in seconds, for what has no bound of
    its own."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        *,
        without_fence: bool,
        without_limits: bool,
        without_atomicity: bool,
        patience: float,
        client: Client,
        say: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self.directory = directory
        self.effects = directory / "effects"
        self.effects.touch()
        self.files = directory / "files"
        self.client = client
        self.patience = patience
        self.say = say
        self.trees: list[Tree] = []
        self.guests: list[Tree] = []
        """Commands that no fault is meant for: those of the other database, and the one whose role
        has too few connections."""
        self.history = History()
        self.deployed_at = float("inf")
        self._enqueuer: subprocess.Popen[bytes] | None = None
        self._flusher: subprocess.Popen[bytes] | None = None
        self._dropper: subprocess.Popen[bytes] | None = None
        self._operator: subprocess.Popen[bytes] | None = None
        self._environment = {
            **cluster.environment,
            "TEST_DATABASE_NAME": "postgres",
            "CHAOS_EFFECTS": str(self.effects),
            "CHAOS_FILES": str(self.files),
            "CHAOS_RECEIVER": f"127.0.0.1:{client.port}",
        }
        if without_fence:
            self._environment["CHAOS_WITHOUT_FENCE"] = "1"
        if without_limits:
            self._environment["CHAOS_WITHOUT_LIMITS"] = "1"
        if without_atomicity:
            self._environment["CHAOS_WITHOUT_ATOMICITY"] = "1"

    def start_trees(self, count: int) -> None:
        """The fleet, with the rights that the documentation says, so that partitions are changed by
        the dropper alone. The transactions of the second are SERIALIZABLE, and the third has a role
        with as many connections as the documentation says, and no more."""
        usual = {**self._environment, "DATABASE_URL": self.cluster.url_as(roles.PLENTY)}
        special = {
            effects.SERIALIZABLE: {"CHAOS_SERIALIZABLE": "1"},
            "tree-2": {"DATABASE_URL": self.cluster.url_as(roles.ENOUGH)},
        }
        for name in (f"tree-{number}" for number in range(count)):
            environment = {**usual, **special.get(name, {})}
            self.trees.append(Tree(name, self.directory, environment))

    def start_guests(self, seconds: float, seed: int) -> None:
        """What has to do with the fleet no more than that the server is the same."""
        short = {**self._environment, "DATABASE_URL": self.cluster.url_as(roles.TOO_FEW)}
        self.guests.append(Tree(roles.TOO_FEW, self.directory, short))
        environment = neighbour.make(self.cluster, self._environment)
        for number in range(neighbour.COMMANDS):
            name = f"{neighbour.NAME}-{number}"
            self.guests.append(Tree(name, self.directory, environment))
        self._flusher = self._python(
            environment, "tests.chaos.flusher", str(self.directory / "flushes.json"),
            "--seconds", str(seconds), "--seed", str(seed),
        )  # fmt: skip

    def start_dropper(self, seed: int) -> None:
        """What makes and drops partitions, as the owner of the tables."""
        self._dropper = self._python(
            self._environment, "tests.chaos.dropper", str(self.directory / "partitions.json"),
            "--seed", str(seed),
        )  # fmt: skip

    def end_dropper(self) -> None:
        """Wait for the end of what it does."""
        assert self._dropper is not None
        self._dropper.terminate()
        if code := self._dropper.wait(self.patience):
            raise RuntimeError(f"the dropper ended with {code}")

    def start_operator(self, runs: int, operations: int, seconds: float, seed: int) -> None:
        """What starts workflows and operations on all jobs that match, and operates them."""
        self._operator = self._python(
            self._environment, "tests.chaos.operator", str(self.directory / "keys-workflows.json"),
            "--runs", str(runs), "--operations", str(operations),
            "--seconds", str(seconds), "--seed", str(seed),
        )  # fmt: skip

    def end_operator(self) -> None:
        """Wait for the end of what it does."""
        assert self._operator is not None
        if code := self._operator.wait(self.patience):
            raise RuntimeError(f"the operator ended with {code}")

    def end_guests(self) -> None:
        """Wait for the last jobs of the other database, then drain them all."""
        assert self._flusher is not None
        while self._flusher.poll() is None:
            self.keep_trees()
            time.sleep(0.1)
        if self._flusher.returncode:
            raise RuntimeError(f"the flusher ended with {self._flusher.returncode}")
        for tree in self.guests:
            tree.signal_root(signal.SIGTERM)
        for tree in self.guests:
            try:
                tree.process.wait(20)
            except subprocess.TimeoutExpired:
                tree.kill()
                self.say(f"{tree.name} did not drain")
        self.guests.clear()

    def wait_for_begin(self) -> None:
        """Until all work and are asked: twenty seconds on a crowded machine."""
        until = time.monotonic() + self.patience
        while not self.cluster.fetch(BEGUN, [len(self.trees)])[0][0] and time.monotonic() < until:
            time.sleep(0.1)

    def keep_trees(self) -> None:
        """Start again what is gone."""
        self.history.exits += [gone for tree in self.trees if (gone := tree.keep()) is not None]
        for tree in self.guests:
            tree.keep()

    def deploy(self) -> None:
        """Processes that start from now on have a handler more."""
        self.deployed_at = time.time()
        deploy.deploy(self.effects)
        self.say("deployed")

    def roll_out(self) -> None:
        """Drain the trees that have the old code still, so that they are started again."""
        for tree in self.trees:
            if tree.started_at < self.deployed_at:
                self.history.faults.append(Fault(kind=plan.DRAIN, at=time.time(), tree=tree.name))
                tree.signal_root(signal.SIGTERM)

    def ask(self, errand: str, **numbers: float) -> None:
        """Start an enqueuer on ``errand``."""
        words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
        file = str(self.directory / f"keys-{errand}.json")
        self._enqueuer = self._python(
            self._environment, "tests.chaos.enqueuer", errand, file, *words
        )

    def _python(self, environment: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", *words], cwd=PROJECT, env=environment, start_new_session=True
        )

    def all_asked(self) -> None:
        """Wait for the enqueuer."""
        assert self._enqueuer is not None
        if code := self._enqueuer.wait(self.patience):
            raise RuntimeError(f"the enqueuer ended with {code}")

    def live(self) -> tuple[int, int, int, int]:
        """How many jobs and operations have not ended, how many jobs wait for a free thread or for
        the end of another job, and how many the operations have come across."""
        ((live, ready, waiting),) = self.cluster.fetch(LIVE)
        ((unfinished, handled),) = self.cluster.fetch(UNFINISHED)
        return live + unfinished, ready, waiting, handled

    def wait_for_all(self) -> None:
        """Until nothing is live. What never ends is found by the accounts."""
        until = time.monotonic() + self.patience
        while self.live()[0] and time.monotonic() < until:
            self.keep_trees()
            time.sleep(0.1)

    def clear(self) -> None:
        """End whatever is left, at once."""
        for tree in (*self.trees, *self.guests):
            tree.kill()
        for pid in resources.ours(self.directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (self._enqueuer, self._flusher, self._dropper, self._operator):
            if process is not None:
                process.kill()
                process.wait()
