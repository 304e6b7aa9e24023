"""The options of ``jobworker``."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .. import registry
from ..conf import conf
from ..lifecycle.workers import WorkerInfo

RECYCLE = 75
"""The exit code of a worker process that is to be replaced (``--max-jobs``, ``--max-rss``)."""

DEFAULT_THREADS = 4

DEFAULT_ASYNC_CONCURRENCY = 100

MOST_ASYNC_CONCURRENCY = 2_000
"""As many as fit into the scoreboard, with the jobs of the threads and those that wait."""

HEARTBEAT_CONNECTIONS = 2
"""Of a command's heartbeat process: one for leases and one for upkeep."""

FORCED = 143
"""The exit code of ``jobworker`` if it had to kill processes that did not exit in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShare:
    """A queue to serve, and its weight."""

    name: str
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Threads of a process, and the queues that they serve."""

    queues: tuple[QueueShare, ...]
    threads: int

    def __str__(self) -> str:
        return f"{','.join(share.name for share in self.queues)}:{self.threads}"


Scrape = Callable[[Mapping[str, str]], tuple[int, str, bytes]]


@dataclass(frozen=True, slots=True)
class HealthPort:
    """The socket that listens at ``--health-port``. ``scrape`` gets the headers of a request for
    metrics, and returns status, content type and body."""

    listener: socket.socket
    scrape: Scrape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Times are in seconds, sizes in megabytes. ``strict`` serves the queues in the given order.
    ``every_queue`` serves all queues, including those created later; ``queues`` are then those at
    the start. ``named_pools`` are those of ``--pool``; ``queues`` and ``threads`` are then those of
    all of them."""

    queues: tuple[QueueShare, ...]
    every_queue: bool = False
    strict: bool = False
    processes: int = 1
    threads: int = DEFAULT_THREADS
    async_concurrency: int = DEFAULT_ASYNC_CONCURRENCY
    named_pools: tuple[PoolOptions, ...] = ()
    drain_timeout: float = 25.0
    burst: bool = False
    lease: float = 24.0
    beat: float = 7.5
    poll: float = 1.0
    max_jobs: int | None = None
    max_rss: int | None = None
    name: str = ""
    forks: bool = True
    health: HealthPort | None = None

    @property
    def pools(self) -> tuple[PoolOptions, ...]:
        """The thread pools of each process: the named ones, or one with everything."""
        return self.named_pools or (PoolOptions(queues=self.queues, threads=self.threads),)

    @property
    def connections(self) -> int:
        """The most connections to the jobs' database that a command needs, without those of
        isolated children. Without fork, crash recovery needs one more, while all others may be in
        use; and so does a scrape of metrics."""
        scrapes = self.health is not None and self.health.scrape is not None
        of_process = connections_of(self.threads, on_loop=bool(registry.loop_types()))
        return HEARTBEAT_CONNECTIONS + self.processes * of_process + (not self.forks) + scrapes

    @property
    def in_main_thread(self) -> bool:
        """Whether the only thread that runs handlers is the main thread of its process, where
        ``signal.signal()`` and ``asyncio.get_event_loop()`` work."""
        return self.forks and self.threads == 1

    def async_slots(self, pool: PoolOptions) -> int:
        """How many async handlers of a pool run at once in a process: a share of all, by its
        threads, and at least one."""
        return max(self.async_concurrency * pool.threads // self.threads, 1)


def connections_of(threads: int, *, on_loop: bool) -> int:
    """The most connections of a worker process: one each for claiming, settling, listening and
    reports, and one per thread. Async handlers have as many as threads, and one more for free
    threads."""
    return 4 + threads + (threads + 1 if on_loop else 0)


def chosen_queues(text: str | None, strict: bool, names: Sequence[str]) -> tuple[QueueShare, ...]:
    """The queues that ``--queues`` lists, or all. Raises ``ValueError`` for unknown names."""
    if text is None:
        if strict:
            raise ValueError("--strict serves the queues in the given order; name them")
        if not names:
            raise ValueError("there are no queues yet; run manage.py migrate")
        return tuple(QueueShare(name=name) for name in names)
    shares = parse_queues(text)
    _demand_known(shares, names)
    return shares


def chosen_pools(texts: Sequence[str], names: Sequence[str]) -> tuple[PoolOptions, ...]:
    """The pools that ``--pool`` lists. Raises ``ValueError`` for unknown or repeated names."""
    pools = tuple(parse_pool(text) for text in texts)
    shares = [share for pool in pools for share in pool.queues]
    _demand_known(shares, names)
    served = [share.name for share in shares]
    for name in served:
        if served.count(name) > 1:
            raise ValueError(f"queue {name!r} is in two pools; give one of them its threads")
    return pools


def parse_pool(text: str) -> PoolOptions:
    """Parse ``"mail,web:16"``: queues and threads. Raises ``ValueError`` for anything else."""
    names, _, threads = text.rpartition(":")
    if ":" in names:
        raise ValueError(
            f"{text!r} has more than one number; a pool is written mail,web:16, with its threads "
            "last and without weights"
        )
    if not (threads.isdecimal() and int(threads) >= 1):
        raise ValueError(f"{text!r} does not end with its number of threads, such as mail,web:16")
    return PoolOptions(queues=parse_queues(names), threads=int(threads))


def _demand_known(shares: Sequence[QueueShare], names: Sequence[str]) -> None:
    unknown = [share.name for share in shares if share.name not in names]
    if unknown:
        raise ValueError(f"no queue is named {', '.join(unknown)}; known are: {', '.join(names)}")


def parse_queues(text: str) -> tuple[QueueShare, ...]:
    """Parse ``"critical:5,default"``. An omitted weight is 1. Raises ``ValueError`` for an empty
    list, a duplicate name, or a weight that is not a whole number from 1 to 1000."""
    shares: list[QueueShare] = []
    for part in text.split(","):
        name, _, weight = part.strip().partition(":")
        if not name:
            raise ValueError(f"{text!r} names an empty queue")
        if name in {share.name for share in shares}:
            raise ValueError(f"queue {name!r} is named twice")
        if weight and not (weight.isdecimal() and 1 <= int(weight) <= 1000):
            raise ValueError(
                f"the weight of {name!r} is a whole number from 1 to 1000, not {weight!r}"
            )
        shares.append(QueueShare(name=name, weight=int(weight or 1)))
    return tuple(shares)


def claimable(options: Options) -> dict[str, int]:
    """The names of the job types that this worker claims, with the newest version that it reads."""
    versions = registry.versions()
    if options.forks:
        return versions
    left = left_to_others()
    return {name: version for name, version in versions.items() if name not in left}


def left_to_others() -> frozenset[str]:
    """The names of the job types that only a worker with fork can run."""
    return frozenset(
        name for name in registry.versions() if registry.runs_isolated(registry.find(name))
    )


def worker_info(options: Options, queues: list[str]) -> WorkerInfo:
    host = socket.gethostname() or platform.node()
    return WorkerInfo(
        name=options.name or host,
        host=host,
        pid=os.getpid(),
        queues=queues,
        threads=options.threads,
        async_slots=options.async_concurrency if registry.loop_types() else 0,
        pools=[
            ([share.name for share in pool.queues], pool.threads) for pool in options.named_pools
        ],
        job_types=claimable(options),
        code_version=conf().code_version,
        supervisor_pid=os.getppid() if options.forks else os.getpid(),
        lease=options.lease,
    )
