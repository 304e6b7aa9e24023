"""``jobstatus --check``: whether there is a problem, or conditions hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import CommandError

from ..conf import conf
from ..domain.conditions import LEVELS, Condition, Values, failed, parse
from ..lifecycle.backlog import MOST_COUNTED
from ..metrics.schedules import MAX_LAG
from ..metrics.snapshot import QueueSnapshot, Snapshot, live_workers, problem, take_snapshot
from ..models.database import DATABASE_ERRORS
from .base import database_problem

NOT_CHECKED = 2
"""The exit code if the conditions are wrong, or the database does not answer."""

COUNTED_TOGETHER = ("running", "scheduled", "dead")
"""The first 100,000 of all queues are counted."""


def demand(
    *, check: bool | str, max_lag: float | None, json: bool, watch: float | None, **others: Any
) -> None:
    """Check what ``--check`` asks for: that there is no problem, or its conditions.

    Raises ``CommandError`` with the exit code 1 if there is a problem or a condition does not hold,
    and with 2 if conditions cannot be checked.
    """
    wrong_use = NOT_CHECKED if isinstance(check, str) else 1
    if check is False:
        raise CommandError("--max-lag requires --check")
    if json or watch is not None:
        raise CommandError(
            "--check cannot be combined with --json or --watch", returncode=wrong_use
        )
    if check is True:
        _demand_no_problem(MAX_LAG if max_lag is None else max_lag)
    elif max_lag is None:
        _demand_conditions(check)
    else:
        raise CommandError(
            "--max-lag cannot be combined with conditions: add one such as lag<30",
            returncode=wrong_use,
        )


def _demand_no_problem(max_lag: float) -> None:
    if not 1 <= max_lag <= 86_400:
        raise CommandError(f"--max-lag takes 1 to 86,400 seconds, not {max_lag:g}")
    wrong = problem(take_snapshot(), max_lag=max_lag, schedules=conf().schedules)
    if wrong is not None:
        raise CommandError(wrong)


def _demand_conditions(text: str) -> None:
    try:
        snapshot = take_snapshot()
    except DATABASE_ERRORS as error:
        raise CommandError(database_problem(error) or str(error), returncode=NOT_CHECKED) from error
    try:
        conditions = parse(text, [queue.name for queue in snapshot.queues])
    except ValueError as error:
        raise CommandError(f"--check: {error}", returncode=NOT_CHECKED) from None
    values = dict(_values(snapshot))
    _refuse_unknown(conditions, values)
    if wrong := failed(conditions, values):
        raise CommandError("; ".join(wrong))


def _refuse_unknown(conditions: Sequence[Condition], values: Values) -> None:
    """The number of one queue is not known if the count of all queues has stopped."""
    for one in conditions:
        together = one.queue and one.quantity in COUNTED_TOGETHER
        if together and values["", one.quantity] >= MOST_COUNTED:
            raise CommandError(
                f"--check: {one} is not known: {MOST_COUNTED:,} or more jobs are {one.quantity}, "
                f"and the others are not counted by queue. Compare {one.quantity} without a queue",
                returncode=NOT_CHECKED,
            )


def of_the_fleet(snapshot: Snapshot) -> dict[str, float]:
    """The numbers that are of no queue alone."""
    lag = snapshot.schedules.lag_seconds if conf().schedules else 0.0
    return {"unclaimable": snapshot.unclaimable, "lag": lag}


def _values(snapshot: Snapshot) -> Iterator[tuple[tuple[str, str], float]]:
    alive = live_workers(snapshot)
    of_queues = {queue.name: _of_queue(queue) for queue in snapshot.queues}
    for name, values in of_queues.items():
        for quantity, value in values.items():
            yield (name, quantity), value
        yield (name, "workers"), sum(name in worker.queues for worker in alive)
    for quantity in ("ready", "running", "scheduled", "dead"):
        yield ("", quantity), sum(values[quantity] for values in of_queues.values())
    for quantity in ("age", "pressure"):
        yield ("", quantity), max((values[quantity] for values in of_queues.values()), default=0)
    yield ("", "workers"), len(alive)
    for quantity, value in of_the_fleet(snapshot).items():
        yield ("", quantity), value


def _of_queue(queue: QueueSnapshot) -> dict[str, float]:
    return {
        "age": queue.oldest_due_seconds or 0,
        "ready": queue.ready,
        "running": queue.running,
        "scheduled": queue.scheduled,
        "dead": queue.dead,
        "pressure": LEVELS.index(queue.pressure or "ok"),
    }
