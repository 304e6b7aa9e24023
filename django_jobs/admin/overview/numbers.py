"""The stored numbers of the overview, by what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...metrics.gauges import read_gauges
from ...metrics.overview import MINUTES, RATE_MINUTES, read_overview, read_queue
from ...metrics.stored import NoMetrics, Parts
from ...separators import number_text

MOST_QUEUES = 30
"""Queues that the page lists: those with the most jobs."""

MOST_LATE = 10
"""Late queues whose busy threads are looked at, those with the longest waits."""

LATE_SECONDS = 60.0
"""After this wait a job is late, in a queue without an objective."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Count:
    """How many jobs. An ``estimate`` is one where there are too many to count."""

    number: int = 0
    estimate: bool = False

    def __add__(self, other: Count) -> Count:
        return Count(self.number + other.number, self.estimate or other.estimate)

    def __str__(self) -> str:
        return f"{'≈ ' if self.estimate else ''}{number_text(self.number)}"


class Numbers:
    """What the page shows. ``gauges`` are those of ``/metrics``, ``own`` those of the page."""

    def __init__(self, gauges: Parts, own: Parts | None = None) -> None:
        self.gauges = gauges
        self.own = own or {}

    @cached_property
    def queues(self) -> dict[str, Row]:
        return _by(self.gauges["queues"], "queue")

    @cached_property
    def listed(self) -> list[str]:
        """The names of the queues that the page lists."""
        totals: dict[str, int] = dict.fromkeys(self.queues, 0)
        for (name, state), count in self._counts.items():
            if state != "dead" and name in totals:
                totals[name] += count.number
        most = sorted(totals, key=lambda name: (-totals[name], name))
        return sorted(most[:MOST_QUEUES])

    @cached_property
    def _counts(self) -> dict[tuple[str, str], Count]:
        return {
            (row["queue"], row["state"]): Count(int(row["jobs"]), bool(row["estimated"]))
            for row in self.gauges["jobs"]
        }

    def jobs(self, state: str, queue: str | None = None) -> Count:
        """The jobs in a state, of one queue or of all."""
        if queue is not None:
            return self._counts.get((queue, state), Count())
        of_all = (count for (_, of), count in self._counts.items() if of == state)
        return sum(of_all, Count())

    def waiting(self, queue: str | None = None) -> Count:
        """The jobs that wait for a worker, or at their gates, of one queue or of all."""
        return self.jobs("ready", queue) + self.jobs("blocked", queue)

    def is_full(self, queue: str) -> bool:
        """Whether as many jobs of the queue run as may, and others are ready."""
        limit = self.queues[queue]["max_concurrency"]
        if limit is None or not self.jobs("ready", queue).number:
            return False
        return bool(self.jobs("running", queue).number >= limit)

    def is_late(self, queue: str) -> bool:
        """Whether jobs that could start have waited for longer than they should."""
        row = self.queues[queue]
        if row["paused"] or not row["slots"] or self.is_full(queue):
            return False
        if row["slo_seconds"] is not None:
            return bool(row["late"])
        return float(row["oldest_ready_seconds"]) >= LATE_SECONDS

    @cached_property
    def lost(self) -> list[str]:
        """The names of queues in which jobs wait and whose row was deleted."""
        names = {name for name, _ in self._counts} - self.queues.keys()
        return sorted(name for name in names if self.waiting(name).number)

    @cached_property
    def slots(self) -> int:
        """Of all workers whose lease has not expired."""
        return sum(int(row["slots"]) for row in self.gauges["worker_slots"])

    @cached_property
    def workers(self) -> int:
        """How many have not ended, and have a lease."""
        return sum(row["workers"] for row in self.gauges["workers"] if row["status"] != "expired")

    @cached_property
    def minutes(self) -> list[Mapping[str, int]]:
        """The attempts that ended by outcome, for each minute; the last one is not over."""
        known = _by(self.own["minutes"], "ago")
        nothing: Row = {"succeeded": 0, "failed": 0, "others": 0}
        return [known.get(ago, nothing) for ago in range(MINUTES - 1, -1, -1)]

    @property
    def finished_per_minute(self) -> float:
        """The attempts that ended, of the last minutes that are over."""
        ended = (sum(minute[name] for name in ("succeeded", "failed", "others"))
                 for minute in self.minutes[-1 - RATE_MINUTES : -1])  # fmt: skip
        return sum(ended) / RATE_MINUTES

    @property
    def failed_share(self) -> float | None:
        """The share of the attempts of the last hour that failed; None without any."""
        failed = sum(minute["failed"] for minute in self.minutes)
        ended = failed + sum(minute["succeeded"] for minute in self.minutes)
        return failed / ended if ended else None

    @property
    def oldest_seconds(self) -> float:
        """For how long the oldest ready job has been due; 0 without one."""
        waits = (float(row["oldest_ready_seconds"]) for row in self.gauges["queues"])
        return max(waits, default=0.0)

    def of_queue(self, part: str, queue: str) -> Row:
        """The row of a part about one queue; empty without one."""
        return _by(self.own[part], "queue").get(queue, {})

    def worker_label(self, worker: Row) -> str:
        """The name of a worker, with its process where others have the same name."""
        name: str = worker["name"]
        if sum(row["name"] == name for row in self.own["workers"]) == 1:
            return name
        place = f"{worker['host']}:{worker['pid']}"
        return place if name == worker["host"] else f"{name} {place}"

    def holders(self, part: str, name: str) -> list[list[Any]]:
        """The jobs that hold a limit: id, job type and seconds of each."""
        jobs: list[list[Any]] = _by(self.own[part], "name").get(name, {}).get("jobs", [])
        return jobs

    @property
    def age(self) -> float:
        """Seconds since the older part of the numbers was taken."""
        return max(float(parts["stored"][0]["age"]) for parts in (self.gauges, self.own))


def read_numbers() -> Numbers:
    """Read the stored numbers, or take them. Raises
    :class:`~django_jobs.metrics.stored.NoMetrics` if another session takes the first."""
    numbers = Numbers(read_gauges())
    queues, resources = numbers.queues, numbers.gauges["resources"]
    late = list(filter(numbers.is_late, queues))
    late.sort(key=lambda name: -float(queues[name]["oldest_ready_seconds"]))
    numbers.own = read_overview(
        numbers.listed,
        list(filter(numbers.is_full, queues))[:MOST_QUEUES],
        [row["resource"] for row in resources if is_taken(row)][:MOST_QUEUES],
        late[:MOST_LATE],
    )
    return numbers


def stored_numbers() -> Numbers | None:
    """As :func:`read_numbers`; None if there are none yet."""
    try:
        return read_numbers()
    except NoMetrics:
        return None


def read_numbers_of(queue: str) -> Numbers:
    """As :func:`read_numbers`, with those of this queue if the overview does not list it."""
    numbers = read_numbers()
    if numbers.of_queue("curves", queue):
        return numbers
    return Numbers(numbers.gauges, {**numbers.own, **read_queue(queue)})


def is_taken(resource: Row) -> bool:
    """Whether all of the resource is taken, and jobs wait for it."""
    limit, taken = resource["max_concurrency"], resource["taken"]
    return bool(limit is not None and (taken or 0) >= limit and resource["waiting"])


def _by(rows: list[Row], key: str) -> dict[Any, Row]:
    return {row[key]: row for row in rows}
