"""What is wrong now, as the doctor, the metrics and ``jobstatus`` find it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from ...metrics.gauges import BOUNDS, read_gauges
from ...metrics.schedules import MAX_LAG, problem_of_schedules, take_schedules
from ...metrics.slo import BURNING, FEWEST_RUNS, take_objectives
from ...metrics.stored import NoMetrics
from ..examination import EXAMINATIONS, diagnose
from ..findings import CannotExamine, Finding, jobs

Situation = tuple[str, str]
"""The name of what it happens to, empty for all of them, and the problem in a sentence."""


def _dead_jobs() -> Iterator[Situation]:
    for row in read_gauges()["queues"]:
        if number := row["recently_dead"]:
            died = jobs(number, BOUNDS["recent"])
            yield row["queue"], f"{died} of the queue {row['queue']!r} died in the last hour."


def _late_schedule() -> Iterator[Situation]:
    if problem := problem_of_schedules(take_schedules(), MAX_LAG):
        yield "", f"{problem[0].upper()}{problem[1:]}."


def _unserved_queue() -> Iterator[Situation]:
    for finding in _findings("D301", "D302"):
        names = finding.facts.get("queues") or [finding.facts["queue"]]
        yield from ((name, finding.problem) for name in names)


def _failed_compensation() -> Iterator[Situation]:
    for finding in _findings("D309"):
        yield str(finding.facts["run"]), finding.problem


def _open_breaker() -> Iterator[Situation]:
    """One that is half open was open, and is not closed yet."""
    for row in read_gauges()["breakers"]:
        if row["is_in"] and row["state"] != "closed":
            state = row["state"].replace("_", " ")
            yield row["resource"], f"The breaker of the resource {row['resource']!r} is {state}."


def _burning_objective() -> Iterator[Situation]:
    for one in take_objectives():
        if one.hour.runs >= FEWEST_RUNS and (one.hour.burn_rate or 0) > BURNING:
            yield (
                one.queue,
                f"{one.hour.ratio:.1%} of the last hour's jobs of the queue {one.queue!r} started "
                f"within {one.seconds:g} s; the objective is {one.target * 100:.4g}%.",
            )


LOOKS: dict[str, Callable[[], Iterable[Situation]]] = {
    "dead_jobs": _dead_jobs,
    "late_schedule": _late_schedule,
    "unserved_queue": _unserved_queue,
    "failed_compensation": _failed_compensation,
    "open_breaker": _open_breaker,
    "burning_objective": _burning_objective,
}
"""By the names of :data:`~django_jobs.domain.alerts.HOLD_SECONDS`."""


def look_for(names: Collection[str]) -> dict[str, dict[str, str]]:
    """The problems of these situations, by what they happen to. One that could not be looked for is
    left out. Raises the database's error."""
    found = {}
    for name in names:
        try:
            found[name] = dict(LOOKS[name]())
        except (CannotExamine, NoMetrics):
            continue
    return found


def _findings(*numbers: str) -> Iterator[Finding]:
    chosen = [one for one in EXAMINATIONS if numbers[0] in one.numbers]
    diagnosis = diagnose(chosen)
    if diagnosis.not_examined:
        raise CannotExamine(diagnosis.not_examined[0].reason)
    ids = {f"django_jobs.{number}" for number in numbers}
    return (one for one in diagnosis.findings if one.id in ids)
