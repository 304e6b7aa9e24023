"""How soon things went on, measured from the log of the faults, the runs and the effects."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.clusters import Cluster

from . import plan
from .accounts import Problem
from .effects import Line
from .history import Fault, History
from .timing import DRAIN, GRACE, HOLD, LEASE, POLL, REWIND, STALL, SWEEP

CRASH, FOUND, MACHINE, OUTAGE, RELEASED, DRAINED = (
    "a handler's process died: its job starts again",
    "a worker fell silent: all it held is settled as lost, since its last heartbeat",
    "a worker fell silent: the first of its jobs is claimed again, since its last heartbeat",
    "the database is back: the first claim",
    "a run was released: its job is claimed again",
    "a worker was told to drain: it is gone",
)

PROMISED = {
    CRASH: 1.0,
    FOUND: LEASE + SWEEP,
    MACHINE: LEASE + SWEEP + POLL,
    OUTAGE: 5.0,
    RELEASED: 1.0,
    DRAINED: DRAIN + 3.0,
}
"""Seconds, from docs/delivery.md and docs/promises.md with the settings of this test; a drain has
one more for the machine, as docs/chaos.md tells."""

QueuePosition = tuple[float, int]
"""Where a job stands in its queue: when it was due, and its number."""

# Jobs of the queue with a limit may have to wait for its other jobs, also for those of a worker
# that is only found dead when its lease is over: that is no recovery. One of the deploy waits for a
# worker that knows its type.
ATTEMPTS = """
SELECT run.job_id, run.attempt, run.outcome, job.job_type, worker.name, worker.id,
    run.error_message LIKE 'worker % stopped renewing its lease',
    extract(epoch FROM worker.heartbeat_at)::float8,
    extract(epoch FROM run.finished_at)::float8,
    extract(epoch FROM later.claimed_at)::float8,
    extract(epoch FROM later.available_at)::float8, taker.name
FROM django_jobs_run AS run
JOIN django_jobs_job AS job ON job.id = run.job_id AND job.queue = 'default'
JOIN django_jobs_worker AS worker ON worker.id = run.worker_id
JOIN django_jobs_run AS later ON later.job_id = run.job_id AND later.attempt = run.attempt + 1
JOIN django_jobs_worker AS taker ON taker.id = later.worker_id
WHERE run.outcome IN ('lost', 'released') AND job.replays = 0  -- an operator takes any time
    AND job.job_type <> 'chaos.newcomer'
ORDER BY run.finished_at
"""

# A job that waited at its gates is claimed long after it was due, and nobody waited for it. The
# event loop has free slots where no thread is free, and a suspect waits for a thread.
CLAIMS = """
SELECT extract(epoch FROM run.claimed_at)::float8, extract(epoch FROM run.available_at)::float8,
    job.id, job.queue = 'default' AND job.job_type NOT LIKE 'chaos.awaits%'
FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = run.job_id
WHERE job.gates IS NULL
ORDER BY run.claimed_at
"""

HOLDERS = """
SELECT id, (payload->>'seconds')::float8 FROM django_jobs_job WHERE job_type = 'chaos.hold_the_gil'
"""

# When somebody was there to sweep and to claim: from two looks at its row after its boot. The one
# with too few connections never is.
BOOTS = """
SELECT name, extract(epoch FROM started_at)::float8,
    extract(epoch FROM coalesce(stopped_at, 'infinity'))::float8
FROM django_jobs_worker WHERE name LIKE 'tree-%'
"""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One. ``able`` are those of its seconds in which nothing else was wrong with whoever had to
    see to it: the bound holds for them, and only where they are all is it a figure worth telling.
    """

    seconds: float
    able: float
    what: str

    @property
    def clear(self) -> bool:
        """Whether nothing disturbed it."""
        return self.able >= self.seconds


@dataclass(slots=True)
class Recoveries:
    """All of a run, by kind."""

    found: dict[str, list[Recovery]] = field(
        default_factory=lambda: {kind: [] for kind in PROMISED}
    )

    def problems(self) -> Iterator[Problem]:
        """Each that took too long, and each kind whose median did."""
        for kind, recoveries in self.found.items():
            promised = PROMISED[kind]
            late = [one for one in recoveries if one.able > promised + STALL]
            if late:
                worst = max(late, key=lambda one: one.able)
                yield 7, f"{kind}: {len(late)} late, the worst {worst.able:.2f} s, {worst.what}"
            clear = [one.seconds for one in recoveries if one.clear]
            if len(clear) >= 5 and median(clear) > promised:
                yield 7, f"{kind}: a median of {median(clear):.2f} s, promised {promised:.1f} s"

    def add(self, kind: str, seconds: float, what: str, *, able: float | None = None) -> None:
        """Note one; ``able`` where it was disturbed."""
        self.found[kind].append(Recovery(seconds, seconds if able is None else able, what))


def measure(cluster: Cluster, history: History, lines: Sequence[Line]) -> Recoveries:
    """Everything that was lost and found again."""
    recoveries = Recoveries()
    silences: dict[int, list[tuple[float, float, float, QueuePosition]]] = {}
    claims = cluster.fetch(CLAIMS)
    turns = Turns([(at, (due, job)) for at, due, job, by_thread in claims if by_thread])
    executed = {(line.job, line.attempt): line for line in lines}
    holders = dict(cluster.fetch(HOLDERS))
    history.holding = [
        Fault(kind="hold", at=line.at, tree=line.tree, until=line.at + HOLD + holders[line.job])
        for line in lines
        if line.job in holders
    ]
    for row in cluster.fetch(ATTEMPTS):
        job, attempt, outcome, kind, tree, worker, silent, beat, ended, claimed, due, taker = row
        line, next_line = executed.get((job, attempt)), executed.get((job, attempt + 1))
        what = f"job {job} attempt {attempt} on {tree}"
        # A job that was lost or released is due as before; if a defect delays it, that counts.
        place = min(due, ended), job
        waited = turns.turn(place, ended, claimed) - ended
        if outcome == "released":
            none = 0.0 if history.disturbed({taker}, ended - GRACE, claimed) else None
            recoveries.add(RELEASED, claimed - ended - waited, what, able=none)
        elif silent:
            silences.setdefault(worker, []).append((beat, ended, claimed, place))
        elif line is not None and (killed := _crash(kind, line, ended, history)) is not None:
            at, fault = killed
            begun = claimed if next_line is None else next_line.at
            wrong = history.disturbed({tree, taker}, at - 0.5, begun, but=fault)
            recoveries.add(CRASH, begun - at - waited, what, able=0.0 if wrong else None)
    able = Able(cluster, history)
    for worker, silence in silences.items():
        beat, found = silence[0][0], max(ended for _, ended, _, _ in silence)
        # The first only: the others may have to wait for a thread, as all jobs do.
        taken, place = min((claimed, place) for _, _, claimed, place in silence)
        turn = turns.turn(place, found, taken)
        what, in_time = f"worker {worker}", able.seconds(beat, found)
        recoveries.add(FOUND, found - beat, what, able=in_time)
        in_time += able.seconds(turn, taken)
        recoveries.add(MACHINE, (found - beat) + (taken - turn), what, able=in_time)
    for outage in history.outages:
        first = next((at for at, *_ in claims if at > outage.gone), float("inf"))
        took, what = max(first - outage.until, 0.0), f"at {outage.at:.1f}"
        # Other faults follow each outage at once. With theirs left out, no figure would be clear.
        is_late = PROMISED[OUTAGE] < took < float("inf")
        in_time = able.seconds(outage.until, first, outage) if is_late else None
        recoveries.add(OUTAGE, took, what, able=in_time)
    for fault in history.faults:
        if fault.kind == plan.DRAIN:
            _drained(fault, history, recoveries)
    return recoveries


class Turns:
    """The claims of one queue in time. A job that is ready again waits there for what was due
    before it, as all jobs do; that is no recovery."""

    def __init__(self, claims: Sequence[tuple[float, QueuePosition]]) -> None:
        self._times = [at for at, _ in claims]
        self._places = [place for _, place in claims]

    def turn(self, place: QueuePosition, ready: float, claimed: float) -> float:
        """When the job that stands at ``place`` was the next, of the time from when it was ready
        until it was claimed: after the last of the older ones. Where a younger one came before
        it, those after that do not count: it should have been claimed by then."""
        turn = ready
        begin, end = bisect_right(self._times, ready), bisect_left(self._times, claimed)
        for at, other in zip(self._times[begin:end], self._places[begin:end], strict=True):
            if other < place:
                turn = at
            elif at > ready + REWIND:
                break
        return turn


def _crash(
    kind: str, line: Line, ended: float, history: History
) -> tuple[float, Fault | None] | None:
    """When the process that ran this was killed."""
    if kind == "chaos.poison":
        return line.at, None
    kills = (fault for fault in history.faults if fault.kind == plan.KILL_CHILD)
    for fault in kills:
        if fault.pid == line.pid and line.at <= fault.at <= ended:
            return fault.at, fault
    return None


def _drained(fault: Fault, history: History, recoveries: Recoveries) -> None:
    exits = (exit for exit in history.exits if exit.tree == fault.tree and exit.at > fault.at)
    gone = next(exits, None)
    if gone is not None:
        wrong = history.disturbed({fault.tree}, fault.at - GRACE, gone.at, but=fault)
        recoveries.add(DRAINED, gone.at - fault.at, fault.tree, able=0.0 if wrong else None)


class Able:
    """When somebody was there to find a silent worker and to take its job: a tree whose worker had
    been up for a while and that nothing was done to."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._boots = cluster.fetch(BOOTS)
        self._history = history

    def seconds(self, since: float, until: float, but: Fault | None = None) -> float:
        """Of this time, in steps of 50 ms."""
        history = self._history.between(since - GRACE, until)
        boots = [boot for boot in self._boots if boot[1] <= until and boot[2] >= since]

        def somebody(moment: float) -> bool:
            return any(
                begun + GRACE <= moment < ended
                and not history.disturbed({name}, moment - GRACE, moment, but)
                for name, begun, ended in boots
            )

        count = max(int((until - since) / 0.05), 1)
        step = (until - since) / count
        unable = sum(not somebody(since + number * step) for number in range(count))
        return until - since - step * unable
