"""One fault after the other, drawn from a seed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence

import psycopg

from tests.clusters import FAST, IMMEDIATE, Cluster

from .fleet import Tree
from .settings import LEASE

TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT %s
"""


class Faults:
    """Does faults to a fleet and its database for a while."""

    def __init__(
        self, trees: Sequence[Tree], cluster: Cluster, seed: int, say: Callable[[str], None]
    ) -> None:
        self.downtime = 0.0
        self._trees = trees
        self._cluster = cluster
        self._choice = random.Random(seed)
        self._say = say
        self._stopped: list[tuple[float, Tree]] = []

    def go_on_for(self, seconds: float) -> None:
        """A fault every 0.3 to 0.9 seconds, and four outages of the database, of which one is
        longer than the lease."""
        begun = time.monotonic()
        outages = [begun + seconds * (quarter + 0.5) / 4 for quarter in range(4)]
        longest = self._choice.randrange(4)
        while (now := time.monotonic()) < begun + seconds:
            for tree in self._trees:
                tree.keep()
            self._wake_the_stopped(now)
            if outages and now >= outages[0]:
                outages.pop(0)
                self._outage(LEASE + 1.5 if len(outages) == longest else None)
            else:
                self._one()
            time.sleep(self._choice.uniform(0.3, 0.9))
        self._wake_the_stopped(float("inf"))
        for tree in self._trees:
            tree.keep()

    def _one(self) -> None:
        tree = self._choice.choice(self._trees)
        faults: dict[str, Callable[[], None]] = {
            "kill the supervisor": lambda: tree.signal_root(signal.SIGKILL),
            "kill a child": lambda: tree.signal_one(signal.SIGKILL, self._choice),
            "stop the tree": lambda: self._stop(tree, lambda: tree.signal_all(signal.SIGSTOP)),
            "stop the supervisor": lambda: self._stop(
                tree, lambda: tree.signal_root(signal.SIGSTOP)
            ),
            "stop a child": lambda: self._stop(
                tree, lambda: tree.signal_one(signal.SIGSTOP, self._choice)
            ),
            "terminate backends": self._terminate,
            "ask it to drain": lambda: tree.signal_root(signal.SIGTERM),
        }
        name = self._choice.choice(list(faults))
        self._say(name)
        faults[name]()

    def _stop(self, tree: Tree, stop: Callable[[], None]) -> None:
        stop()
        until = time.monotonic() + self._choice.uniform(1.0, 2.2 * LEASE)
        self._stopped.append((until, tree))

    def _wake_the_stopped(self, now: float) -> None:
        for until, tree in list(self._stopped):
            if until <= now:
                self._stopped.remove((until, tree))
                tree.signal_all(signal.SIGCONT)

    def _terminate(self) -> None:
        try:
            self._cluster.fetch(TERMINATE, [self._choice.randint(1, 3)])
        except psycopg.Error:
            return

    def _outage(self, seconds: float | None) -> None:
        how = self._choice.choice((FAST, IMMEDIATE))
        seconds = self._choice.uniform(0.0, 2.0) if seconds is None else seconds
        self._say(f"stop the database ({how.name}) for {seconds:.1f} s")
        begun = time.monotonic()
        self._cluster.stop(how)
        time.sleep(seconds)
        self._cluster.start()
        self.downtime += time.monotonic() - begun
