"""What ``jobstatus --check`` refuses: the problems, or conditions over the numbers of queues and
workers that do not hold, such as ``age<60,mail.dead=0``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, get_args

from django.core.management.base import CommandError

from ..conf import conf
from ..domain.hints import did_you_mean
from ..domain.numbers import seconds_of
from ..domain.pressure import Level
from ..lifecycle.backlog import MOST_COUNTED
from ..metrics.schedules import MAX_LAG
from ..metrics.snapshot import QueueSnapshot, Snapshot, live_workers, problem, take_snapshot
from ..metrics.unclaimable import MOST_LOOKED_AT
from ..models.database import DATABASE_ERRORS
from .base import database_problem


class Unit(Enum):
    """What a quantity is measured in."""

    JOBS = auto()
    WORKERS = auto()
    SECONDS = auto()
    LEVEL = auto()


QUANTITIES = {
    "age": Unit.SECONDS,
    "lag": Unit.SECONDS,
    "ready": Unit.JOBS,
    "running": Unit.JOBS,
    "scheduled": Unit.JOBS,
    "dead": Unit.JOBS,
    "unclaimable": Unit.JOBS,
    "workers": Unit.WORKERS,
    "pressure": Unit.LEVEL,
}
OF_A_QUEUE = frozenset(QUANTITIES) - {"lag", "unclaimable"}
"""The quantities that each queue has too."""

LEVELS: tuple[str, ...] = get_args(Level)
"""In their order. Their places are their values."""

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}

PATTERN = re.compile(
    r"\s*(?:(?P<queue>[\w.-]+)\.)?(?P<quantity>\w+)\s*(?P<operator><=|>=|!=|<|>|=)"
    r"\s*(?P<number>[\w.]+)\s*",
    re.ASCII,
)

Values = Mapping[tuple[str, str], float]
"""The values, by queue and quantity. The queue is empty for all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A comparison with a number. ``queue`` is empty for all queues together."""

    queue: str
    quantity: str
    operator: str
    number: float

    def holds(self, values: Values) -> bool:
        return OPERATORS[self.operator](values[self.queue, self.quantity], self.number)

    def explain(self, values: Values) -> str:
        """The condition with the value: ``age<60, but it is 75.2``."""
        return f"{self}, but it is {self._written(values[self.queue, self.quantity])}"

    def __str__(self) -> str:
        name = f"{self.queue}.{self.quantity}" if self.queue else self.quantity
        return f"{name}{self.operator}{self._written(self.number)}"

    def _written(self, value: float) -> str:
        if QUANTITIES[self.quantity] is Unit.LEVEL:
            return LEVELS[int(value)]
        return f"{round(value, 3):.15g}"


def parse(text: str, queues: Collection[str]) -> tuple[Condition, ...]:
    """The conditions, separated by commas. Raises ``ValueError`` for anything else, and for a queue
    that is not in ``queues``."""
    return tuple(_condition(part, queues) for part in text.split(","))


def _condition(text: str, queues: Collection[str]) -> Condition:
    found = PATTERN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text.strip()!r} is not a condition such as age<60 or mail.dead=0")
    queue, quantity = found["queue"] or "", found["quantity"]
    known = OF_A_QUEUE if queue else QUANTITIES
    if quantity not in known:
        of = "of a queue " if queue else ""
        raise ValueError(
            f"{text.strip()!r}: no number {of}is named {quantity!r}; they are "
            f"{', '.join(sorted(known))}"
        )
    if queue and queue not in queues:
        hint = did_you_mean(queue, queues) or f"known are: {', '.join(sorted(queues))}"
        raise ValueError(f"{text.strip()!r}: no queue is named {queue!r}; {hint}")
    try:
        number = _number(found["number"], quantity)
    except ValueError as error:
        raise ValueError(f"{text.strip()!r}: {error}") from None
    return Condition(queue=queue, quantity=quantity, operator=found["operator"], number=number)


def _number(text: str, quantity: str) -> float:
    unit = QUANTITIES[quantity]
    if unit is Unit.LEVEL:
        if text not in LEVELS:
            raise ValueError(f"{text!r} is not a level; they are {', '.join(LEVELS)}")
        return LEVELS.index(text)
    if unit is Unit.SECONDS:
        number = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else seconds_of(text)
        assert number is not None
        return number
    if not re.fullmatch(r"\d{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number")
    most = MOST_LOOKED_AT if quantity == "unclaimable" else MOST_COUNTED
    if unit is Unit.JOBS and int(text) >= most:
        raise ValueError(f"jobs are counted up to {most:,}, so compare with less")
    return int(text)


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
    if wrong := [one.explain(values) for one in conditions if not one.holds(values)]:
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
    for quantity in ("ready", *COUNTED_TOGETHER):
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
