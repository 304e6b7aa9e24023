"""The stored numbers of the overview, by what they are about, and as texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...conf import conf
from ...domain.pressure import Rates, drain_seconds
from ...lifecycle.backlog_samples import Past
from ...metrics.gauges import read_gauges
from ...metrics.overview import MINUTES, RATE_MINUTES, read_overview, read_queue
from ...metrics.stored import NoMetrics, Parts
from ...models import Job
from ...separators import number_text
from ..base.formatting import NOTHING, Visible, badge, duration, joined

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


BEFORE_UNIT = re.compile(r"(?<=\d) (?=[a-z])")

FARTHEST = 1e10
"""Seconds: three centuries stand for all that is farther away."""


def seconds_text(seconds: float) -> str:
    """``3 min 20 s``, with units kept to their numbers. Infinite seconds come as text."""
    length = timedelta(seconds=min(max(float(seconds), -FARTHEST), FARTHEST))
    return BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", duration(length))


def waiting_text(count: Count) -> str:
    """``1 job waits``, ``600 jobs wait``, ``≈ 20,118 jobs wait``."""
    text = ngettext("%(count)s job waits", "%(count)s jobs wait", count.number)
    return text % {"count": str(count)}


def job_text(visible: Visible, id_: int, job_type: str, seconds: float) -> str:
    """A job that holds something: ``media.encode #7 for 22 min``."""
    job = visible.job(id_, f"{job_type} #{id_}".strip())
    return format_html("{} {}", job, _("for %(time)s") % {"time": seconds_text(seconds)})


def jobs_text(visible: Visible, jobs: list[list[Any]]) -> str:
    """The jobs that hold something."""
    return joined(", ", (job_text(visible, *job) for job in jobs))


LONGEST_SECONDS = 100 * 86_400.0

Curve = tuple[list[float | None], str]


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """The numbers of a queue as texts. The rates are attempts a minute. ``curve`` are the ready
    jobs of each minute, and what they say in words."""

    state: SafeString
    ready: str
    scheduled: str
    oldest: str
    running: Count
    limit: str
    done: str
    failed: str
    fails: bool
    empty_in: str
    curve: Curve


def queue_numbers(numbers: Numbers, visible: Visible, name: str) -> QueueNumbers:
    row, rates = numbers.queues[name], numbers.of_queue("rates", name)
    ready, running = numbers.jobs("ready", name), numbers.jobs("running", name)
    limit = row["max_concurrency"]
    failed = rates.get("failed", 0) / RATE_MINUTES
    return QueueNumbers(
        state=queue_state(numbers, name),
        ready=_jobs_link(visible, ready, name, "ready"),
        scheduled=_jobs_link(visible, numbers.jobs("scheduled", name), name, "scheduled"),
        oldest=wait_text(row["oldest_ready_seconds"]) if ready.number else NOTHING,
        running=running,
        limit="∞" if limit is None else number_text(limit),
        done=_done(rates),
        failed=rate_text(failed),
        fails=bool(failed),
        empty_in=empty_in(numbers, name, paused=bool(row["paused"])),
        curve=_curve(numbers, name, ready),
    )


def _done(rates: Row) -> str:
    return rate_text(rates.get("done", 0) / RATE_MINUTES)


def done_per_minute(numbers: Numbers, name: str) -> str:
    """How many attempts of the queue succeeded a minute, of the last five minutes that are over; a
    dash if that is not known of it."""
    if name not in numbers.listed or not conf().totals:
        return NOTHING
    return _done(numbers.of_queue("rates", name))


def _jobs_link(visible: Visible, count: Count, queue: str, status: str) -> str:
    if not count.number:
        return str(count)
    return visible.list_link(Job, str(count), queue=queue, status=status)


def queue_state(numbers: Numbers, name: str) -> SafeString:
    """Whether workers take its jobs."""
    row = numbers.queues[name]
    if row["paused"]:
        return badge("paused", _("paused"))
    if not row["slots"]:
        return badge("error" if numbers.jobs("ready", name).number else "gone", _("no worker"))
    if numbers.is_full(name):
        return badge("over_limit", _("limit full"))
    return badge("ok", _("active"))


def past_of_queue(numbers: Numbers, name: str) -> Past | None:
    """What the rates are made of; None of a queue that is not among the numbers."""
    past = numbers.of_queue("past", name)
    return Past(**{column: past[column] for column in Past._fields}) if past else None


def rates_of_queue(numbers: Numbers, name: str) -> Rates | None:
    """The rates of the last five minutes; None if they are not known."""
    known = past_of_queue(numbers, name)
    ready = numbers.jobs("ready", name)
    return known.rates(None if ready.estimate else ready.number) if known else None


def empty_in(numbers: Numbers, name: str, *, paused: bool) -> str:
    """When the backlog will be gone, by the rates of the last five minutes."""
    ready, past = numbers.jobs("ready", name), past_of_queue(numbers, name)
    if not ready.number:
        return _("empty")
    if paused:
        return _("after the pause")
    if past and (past.is_young or numbers.queues[name]["paused"]):
        return _("not known yet")
    rates = rates_of_queue(numbers, name)
    if rates is None:
        return NOTHING
    seconds = drain_seconds(ready.number, rates.drained)
    if seconds is not None:
        text = seconds_text(min(seconds, LONGEST_SECONDS))
        return text if seconds < LONGEST_SECONDS else f">\N{NO-BREAK SPACE}{text}"
    return _("growing") if rates.arrived > rates.claimed else _("not moving")


def _curve(numbers: Numbers, name: str, ready: Count) -> Curve:
    values: list[float | None] = [None] * MINUTES
    for ago, number in numbers.of_queue("curves", name).get("points", ()):
        values[MINUTES - 1 - min(max(ago, 0), MINUTES - 1)] = number  # a clock may have gone back
    values[-1] = ready.number
    for place in range(MINUTES - 1, 0, -1):  # samples are a minute apart, but for seconds
        if values[place] is None:
            values[place] = values[place - 1]
    known = [value for value in values if value is not None]
    title = _("Ready jobs of %(queue)s in the last hour: at most %(most)s") % {
        "queue": name,
        "most": number_text(max(known)),
    }
    return values, title


def wait_text(seconds: float) -> str:
    """How long something has waited; a dash for 0."""
    return seconds_text(seconds) if seconds else NOTHING


def rate_text(rate: float) -> str:
    """A rate, with a decimal where it is small and not whole."""
    return (
        number_text(rate, ",.0f") if rate >= 10 or rate == int(rate) else number_text(rate, ".1f")
    )
