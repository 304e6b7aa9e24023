"""Conditions over the numbers of queues and workers, such as ``age<60,mail.dead=0``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from .durations import seconds_of
from .hints import did_you_mean


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

LEVELS = ("ok", "high", "full")
"""The levels of pressure, in their order. Their places are their values."""

MOST_JOBS = 99_999
"""Counts stop above it, so a larger number cannot be compared."""
MOST_UNCLAIMABLE = 4_999
"""The same for the jobs of a queue that no worker can run."""

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


def failed(conditions: Sequence[Condition], values: Values) -> list[str]:
    """The conditions that do not hold, with their values."""
    return [one.explain(values) for one in conditions if not one.holds(values)]


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
    most = MOST_UNCLAIMABLE if quantity == "unclaimable" else MOST_JOBS
    if unit is Unit.JOBS and int(text) > most:
        raise ValueError(f"jobs are counted up to {most + 1:,}, so compare with less")
    return int(text)
